package tailrace;

import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionOperation;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import scala.Option;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;

/**
 * Carries the arrival time of a record through Spark's own operators, in a column that the
 * pipeline does not see: the tag of Lohrmann 2016, section 4.4.1.
 *
 * <p>A step takes the tag off its input and puts it on its output. Between two steps a projection
 * drops every column that it does not name, so this adds the tag to each projection on the way.
 * Where many records become one, as in an aggregation, no tag fits and it ends there.
 */
public final class Tag {
  /** The column of the arrival time, in microseconds since the epoch. */
  public static final String NAME = "_tailrace_us";

  private Tag() {}

  /** The same records with their tag as the last column, where there is one; else as they are. */
  public static Dataset<Row> carried(Dataset<Row> frame) {
    var classic = (org.apache.spark.sql.classic.Dataset<Row>) frame;
    LogicalPlan plan = classic.queryExecution().analyzed();
    return tagged(plan)
        .map(with -> frame(classic, project(with, plan.output())))
        .orElse(frame);
  }

  private static Dataset<Row> frame(
      org.apache.spark.sql.classic.Dataset<Row> like, LogicalPlan plan) {
    return org.apache.spark.sql.classic.Dataset.ofRows(like.sparkSession(), plan);
  }

  /** The plan with the tag somewhere in its output. */
  private static Optional<LogicalPlan> tagged(LogicalPlan plan) {
    if (tag(plan).isPresent()) {
      return Optional.of(plan);
    }
    if (plan instanceof Project project) {
      return tagged(project.child())
          .map(child -> new Project(and(project.projectList(), tag(child).get()), child));
    }
    if (plan instanceof Union union) {
      return unionOf(union);
    }
    if (plan instanceof Deduplicate distinct) {
      // Its keys stay what they are: told to take all columns, it would take the tag for one.
      return tagged(distinct.child())
          .map(child -> new Deduplicate(distinct.keys(), child, Option.empty()));
    }
    if (keepsColumns(plan)) {
      LogicalPlan child = plan.children().head();
      return tagged(child).map(with -> plan.withNewChildren(listed(List.of(with))));
    }
    return Optional.empty();
  }

  private static Optional<LogicalPlan> unionOf(Union union) {
    List<LogicalPlan> children =
        JavaConverters.asJava(union.children()).stream()
            .flatMap(child -> tagged(child).map(with -> project(with, child.output())).stream())
            .toList();
    return children.size() == union.children().size()
        ? Optional.of(union.withNewChildren(listed(children)))
        : Optional.empty();
  }

  private static boolean keepsColumns(LogicalPlan plan) {
    return plan instanceof Filter
        || plan instanceof SubqueryAlias
        || plan instanceof RepartitionOperation
        || plan instanceof Generate
        || plan instanceof EventTimeWatermark;
  }

  private static Optional<Attribute> tag(LogicalPlan plan) {
    return JavaConverters.asJava(plan.output()).stream()
        .filter(attribute -> attribute.name().equals(NAME))
        .findFirst();
  }

  /** The given columns and then the tag. */
  @SuppressWarnings("unchecked") // an attribute is a named expression
  private static LogicalPlan project(LogicalPlan with, Seq<Attribute> columns) {
    Attribute tag = tag(with).get();
    return new Project(and((Seq<NamedExpression>) (Seq<?>) columns, tag), with);
  }

  private static Seq<NamedExpression> and(Seq<NamedExpression> columns, NamedExpression tag) {
    var all = new java.util.ArrayList<>(JavaConverters.asJava(columns));
    all.removeIf(column -> column.name().equals(NAME));
    all.add(tag);
    return listed(all);
  }

  private static <T> Seq<T> listed(List<T> items) {
    return JavaConverters.asScala(items).toSeq();
  }
}
