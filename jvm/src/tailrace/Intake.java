package tailrace;

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
 * How the columns that a chain gets come out of the rows below it.
 *
 * <p>A projection right below would copy every column into a row, only for it to be copied into
 * Arrow: so it is not run, and columns that it passes on are taken from the row below it.
 */
record Intake(Seq<Attribute> below, List<Expression> columns) implements Serializable {
  /** Where a plan's records are to be had without the projection that it may begin with. */
  static SparkPlan source(SparkPlan plan) {
    ProjectExec project = projection(plan);
    return project == null ? plan : ((InputAdapter) project.child()).child();
  }

  static Intake of(SparkPlan plan) {
    ProjectExec project = projection(plan);
    Seq<?> columns = project == null ? plan.output() : project.projectList();
    List<Expression> wanted = new ArrayList<>();
    JavaConverters.asJava(columns).forEach(column -> wanted.add((Expression) column));
    return new Intake(source(plan).output(), wanted);
  }

  /** The projection that is all of what Spark would compile, if so. */
  private static ProjectExec projection(SparkPlan plan) {
    return plan instanceof WholeStageCodegenExec whole
            && whole.child() instanceof ProjectExec project
            && project.child() instanceof InputAdapter
            && project.subqueries().isEmpty()
        ? project
        : null;
  }

  /** Takes columns from rows, in one task. */
  Taker taker(List<Field> fields, int partition) {
    return new Taker(fields, partition);
  }

  final class Taker {
    private final int[] places;
    private final UnsafeProjection projection;

    private Taker(List<Field> fields, int partition) {
      List<Expression> computed = new ArrayList<>();
      places = new int[fields.size()];
      for (int i = 0; i < places.length; i++) {
        int place = Column.takesAnyRow(fields.get(i)) ? place(columns.get(i)) : -1;
        if (place < 0) {
          computed.add(columns.get(i));
        }
        places[i] = place < 0 ? -computed.size() : place;
      }
      projection = UnsafeProjection.create(JavaConverters.asScala(computed).toSeq(), below);
      projection.initialize(partition);
    }

    private int place(Expression column) {
      Expression plain = column instanceof Alias alias ? alias.child() : column;
      List<Attribute> held = JavaConverters.asJava(below);
      for (int i = 0; i < held.size(); i++) {
        if (plain instanceof Attribute attribute && held.get(i).exprId().equals(attribute.exprId())) {
          return i;
        }
      }
      return -1;
    }

    /** What has to be computed of a row, in a row that is used again. */
    InternalRow computed(InternalRow row) {
      return projection.apply(row);
    }

    /** Where a column is: its place in the row, or -1, -2, ... in what was computed. */
    int place(int column) {
      return places[column];
    }
  }
}
