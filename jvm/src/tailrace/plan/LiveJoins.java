package tailrace.plan;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.BROADCAST$;
import org.apache.spark.sql.catalyst.plans.logical.HintInfo;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import scala.Option;
import scala.collection.JavaConverters;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/**
 * Broadcasts the static side of every join in real-time mode, whatever size Spark estimates.
 *
 * <p>Any other join would sort or collect the stream first, and so return nothing until the batch
 * has ended, a minute later.
 */
public final class LiveJoins extends SparkStrategy {
  private final SparkSession session;

  /** Created once for each session, by the extension. */
  public LiveJoins(SparkSession session) {
    this.session = session;
  }

  @Override
  @SuppressWarnings("unchecked") // there is one empty list
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    if (plan instanceof Join join
        && join.left().isStreaming() != join.right().isStreaming()
        && isLive(join)) {
      var own = (org.apache.spark.sql.classic.SparkSession) session;
      return own.sessionState().planner().JoinSelection().apply(broadcasting(join));
    }
    return (Seq<SparkPlan>) (Seq<?>) Nil$.MODULE$;
  }

  private static Join broadcasting(Join join) {
    Option<HintInfo> broadcast = Option.apply(new HintInfo(Option.apply(BROADCAST$.MODULE$)));
    Option<HintInfo> none = Option.empty();
    boolean right = join.left().isStreaming();
    JoinHint hint = new JoinHint(right ? none : broadcast, right ? broadcast : none);
    return join.copy(join.left(), join.right(), join.joinType(), join.condition(), hint);
  }

  private static boolean isLive(LogicalPlan plan) {
    return JavaConverters.asJava(plan.collectLeaves()).stream()
        .anyMatch(
            leaf ->
                leaf instanceof StreamingDataSourceV2ScanRelation scan
                    && scan.relation().realTimeModeDuration().isDefined());
  }
}
