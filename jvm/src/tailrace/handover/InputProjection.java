package tailrace.handover;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;

/**
 * How a chain's input columns are taken from the rows below it.
 *
 * <p>A projection right below would copy every column into a row, which would then be copied into
 * Arrow. So it is not run: the columns that it passes on are taken from the row below it, and the
 * rest is computed.
 */
record InputProjection(Seq<Attribute> below, List<Expression> wanted) implements Serializable {
  /** The column that a {@link Page} fills by itself; if present, it is the last. */
  private static final String STAMP = "_tailrace_read";

  /** The plan without the projection that it may begin with. */
  static SparkPlan source(SparkPlan plan) {
    ProjectExec project = projection(plan);
    return project == null ? plan : ((InputAdapter) project.child()).child();
  }

  static InputProjection of(SparkPlan plan) {
    ProjectExec project = projection(plan);
    Seq<?> columns = project == null ? plan.output() : project.projectList();
    List<Expression> wanted = new ArrayList<>();
    JavaConverters.asJava(columns).forEach(column -> wanted.add((Expression) column));
    return new InputProjection(source(plan).output(), wanted);
  }

  /** The projection, if it is everything that Spark would compile; otherwise null. */
  private static ProjectExec projection(SparkPlan plan) {
    return plan instanceof WholeStageCodegenExec whole
            && whole.child() instanceof ProjectExec project
            && project.child() instanceof InputAdapter
            && project.subqueries().isEmpty()
        ? project
        : null;
  }

  Taker taker(List<Field> fields, int partition) {
    return new Taker(fields, partition);
  }

  /** Takes columns from rows, in one task. */
  final class Taker {
    private final int[] places;
    private final UnsafeProjection projection;

    private Taker(List<Field> fields, int partition) {
      int last = fields.size() - 1;
      boolean stamped = last >= 0 && fields.get(last).getName().equals(STAMP);
      places = new int[stamped ? last : last + 1];
      List<Expression> computed = new ArrayList<>();
      for (int column = 0; column < places.length; column++) {
        int place = Column.takesAnyRow(fields.get(column)) ? passedOn(wanted.get(column)) : -1;
        if (place < 0) {
          computed.add(wanted.get(column));
          place = -computed.size();
        }
        places[column] = place;
      }
      projection = UnsafeProjection.create(JavaConverters.asScala(computed).toSeq(), below);
      projection.initialize(partition);
    }

    /** The index, in the row below, of a column that is passed on; otherwise -1. */
    private int passedOn(Expression column) {
      Expression named = column instanceof Alias alias ? alias.child() : column;
      return named instanceof Attribute attribute
          ? below.indexWhere(held -> held.exprId().equals(attribute.exprId()), 0)
          : -1;
    }

    int columns() {
      return places.length;
    }

    /** The index of a column in the row, or -1, -2, ... in the computed row. */
    int place(int column) {
      return places[column];
    }

    /** The computed columns of a row, in a row that is reused. */
    InternalRow computed(InternalRow row) {
      return projection.apply(row);
    }
  }
}
