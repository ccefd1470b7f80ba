package tailrace.probe;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.Cross$;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.LeftOuter$;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LateralJoin;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.RebalancePartitions;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionOperation;
import org.apache.spark.sql.catalyst.plans.logical.ResolvedHint;
import org.apache.spark.sql.catalyst.plans.logical.Sample;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.View;
import scala.Option;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;
import tailrace.plan.LivePlan;

/**
 * Carries the arrival time of a record through Spark's own operators, in a column that the
 * pipeline does not see: the tag of Lohrmann 2016, section 4.4.1.
 *
 * <p>A step removes the tag from its input and adds it to its output. Between two steps Spark drops
 * every column that the pipeline does not name, so this adds the tag to the output of each operator
 * on the way. An operator keeps the tag if each of its results comes from one record of the stream:
 * a projection, an explode, a join with a static side. If many records become one, as in an
 * aggregation, or two streams are joined, no tag fits and it ends there.
 */
public final class Tag {
  /** The column of the arrival time, in microseconds since the epoch. */
  public static final String NAME = "_tailrace_us";

  /** A mark in the tag's metadata, which distinguishes it from a user's column of the same name. */
  public static final String MARK = "tailrace.arrival";

  private Tag() {}

  /** The same records with their tag as the last column, if there is one; otherwise unchanged. */
  public static Dataset<Row> carried(Dataset<Row> frame) {
    var classic = (org.apache.spark.sql.classic.Dataset<Row>) frame;
    LogicalPlan plan = LivePlan.read(frame);
    return tagged(plan)
        .map(with -> frame(classic, project(with, plan.output())))
        .orElse(frame);
  }

  /** The operator in which a frame's records lost their tag, in the user's terms. */
  public static String lostIn(Dataset<Row> frame) {
    return culprit(LivePlan.read(frame)).map(Tag::described).orElse("an operator");
  }

  private static Dataset<Row> frame(
      org.apache.spark.sql.classic.Dataset<Row> like, LogicalPlan plan) {
    return org.apache.spark.sql.classic.Dataset.ofRows(like.sparkSession(), plan);
  }

  /** The plan with the tag as the last output column. */
  private static Optional<LogicalPlan> tagged(LogicalPlan plan) {
    if (tag(plan).isPresent()) {
      return Optional.of(plan);
    }
    return withTag(plan).map(with -> project(with, plan.output()));
  }

  /** The plan with the tag somewhere in its output. */
  private static Optional<LogicalPlan> withTag(LogicalPlan plan) {
    if (plan instanceof Project project) {
      return tagged(project.child())
          .map(child -> new Project(and(project.projectList(), tagOf(child)), child));
    }
    if (plan instanceof Expand expand) {
      return tagged(expand.child()).map(child -> expanded(expand, child));
    }
    if (plan instanceof Deduplicate distinct) {
      // The keys stay as given: all columns would now include the tag.
      return tagged(distinct.child())
          .map(child -> new Deduplicate(distinct.keys(), child, Option.empty()));
    }
    if (plan instanceof Union union) {
      return unionOf(union);
    }
    if (plan instanceof Join join) {
      return joined(join);
    }
    if (keepsColumns(plan)) {
      LogicalPlan child = plan.children().head();
      return tagged(child).map(with -> plan.withNewChildren(listed(List.of(with))));
    }
    return Optional.empty();
  }

  /**
   * Whether every column of the child is in the output, and its meaning depends on none of them.
   */
  private static boolean keepsColumns(LogicalPlan plan) {
    return plan instanceof Filter
        || plan instanceof SubqueryAlias
        || plan instanceof View
        || plan instanceof ResolvedHint
        || plan instanceof RepartitionOperation
        || plan instanceof RebalancePartitions
        || plan instanceof Generate
        || plan instanceof LateralJoin
        || plan instanceof Sample
        || plan instanceof CollectMetrics
        || plan instanceof EventTimeWatermark;
  }

  private static LogicalPlan expanded(Expand expand, LogicalPlan child) {
    Attribute tag = tagOf(child);
    List<Seq<Expression>> rows =
        JavaConverters.asJava(expand.projections()).stream()
            .map(row -> added(row, (Expression) tag))
            .toList();
    return new Expand(listed(rows), added(expand.output(), tag), child);
  }

  private static Optional<LogicalPlan> unionOf(Union union) {
    List<LogicalPlan> children =
        JavaConverters.asJava(union.children()).stream()
            .flatMap(child -> tagged(child).stream())
            .toList();
    return children.size() == union.children().size()
        ? Optional.of(union.withNewChildren(listed(children)))
        : Optional.empty();
  }

  /** A join in which one side has the tag, and every result contains a record of that side. */
  private static Optional<LogicalPlan> joined(Join join) {
    Optional<LogicalPlan> left = tagged(join.left());
    Optional<LogicalPlan> right = tagged(join.right());
    boolean fits =
        left.isPresent() != right.isPresent() && keeps(join.joinType(), left.isPresent());
    return fits
        ? Optional.of(
            join.withNewChildren(
                listed(List.of(left.orElse(join.left()), right.orElse(join.right())))))
        : Optional.empty();
  }

  private static boolean keeps(JoinType type, boolean left) {
    boolean either = type == Inner$.MODULE$ || type == Cross$.MODULE$;
    return either || (left
        ? type == LeftOuter$.MODULE$ || type == LeftSemi$.MODULE$ || type == LeftAnti$.MODULE$
        : type == RightOuter$.MODULE$);
  }

  /** The operator that has the tag in its input but not in its output. */
  private static Optional<LogicalPlan> culprit(LogicalPlan plan) {
    if (tagged(plan).isPresent()) {
      return Optional.empty();
    }
    List<LogicalPlan> children = JavaConverters.asJava(plan.children());
    Optional<LogicalPlan> below =
        children.stream().flatMap(child -> culprit(child).stream()).findFirst();
    boolean here = children.stream().anyMatch(child -> tagged(child).isPresent());
    return below.isPresent() || !here ? below : Optional.of(plan);
  }

  private static String described(LogicalPlan plan) {
    if (plan instanceof Join join) {
      boolean both = tagged(join.left()).isPresent() && tagged(join.right()).isPresent();
      String type = join.joinType().sql().toLowerCase(Locale.ROOT);
      return both ? "a join of two streams" : "a " + type + " join that keeps the other side whole";
    }
    return switch (plan.nodeName()) {
      case "Aggregate" -> "an aggregation";
      case "Distinct" -> "SELECT DISTINCT (dropDuplicates() would do)";
      case "Union" -> "a union with records that are not of the flow's source";
      case "MapInArrow" -> "mapInArrow (a step of Tailrace's would do)";
      case "MapInPandas" -> "mapInPandas (a step of Tailrace's would do)";
      default -> "Spark's operator " + plan.nodeName();
    };
  }

  private static Optional<Attribute> tag(LogicalPlan plan) {
    return JavaConverters.asJava(plan.output()).stream()
        .filter(attribute -> attribute.metadata().contains(MARK))
        .findFirst();
  }

  private static Attribute tagOf(LogicalPlan plan) {
    return tag(plan).orElseThrow();
  }

  /** The given columns, followed by the tag. */
  @SuppressWarnings("unchecked") // an attribute is a named expression
  private static LogicalPlan project(LogicalPlan with, Seq<Attribute> columns) {
    Attribute tag = tagOf(with);
    boolean last = with.output().last().exprId().equals(tag.exprId());
    return last && with.output().size() == columns.size() + 1
        ? with
        : new Project(and((Seq<NamedExpression>) (Seq<?>) columns, tag), with);
  }

  private static Seq<NamedExpression> and(Seq<NamedExpression> columns, NamedExpression tag) {
    var all = new ArrayList<>(JavaConverters.asJava(columns));
    all.removeIf(column -> column.exprId().equals(tag.exprId()));
    all.add(tag);
    return listed(all);
  }

  private static <T> Seq<T> added(Seq<T> items, T last) {
    var all = new ArrayList<>(JavaConverters.asJava(items));
    all.add(last);
    return listed(all);
  }

  private static <T> Seq<T> listed(List<T> items) {
    return JavaConverters.asScala(items).toSeq();
  }
}
