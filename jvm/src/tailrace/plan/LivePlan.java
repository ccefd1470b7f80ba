package tailrace.plan;

import java.util.stream.Stream;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.optimizer.InlineCTE;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.Distinct;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.RebalancePartitions;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionOperation;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import scala.collection.JavaConverters;

/** What real-time mode requires of a query, read from its plan before it is started. */
public final class LivePlan {
  private LivePlan() {}

  /** Whether every source of a stream can be read in real-time mode. */
  public static boolean readsLive(Dataset<Row> frame) {
    return sources(frame).allMatch(LivePlan::isLive);
  }

  /** How many streams a frame reads. */
  public static int streams(Dataset<Row> frame) {
    return (int) sources(frame).count();
  }

  private static Stream<LogicalPlan> sources(Dataset<Row> frame) {
    return nodes(read(frame)).filter(node -> node.children().isEmpty() && node.isStreaming());
  }

  /** The tasks behind the exchanges of a stream, which all run at the same time. */
  public static int tasksBehindExchanges(Dataset<Row> frame, int shufflePartitions) {
    return nodes(read(frame))
        .filter(LogicalPlan::isStreaming)
        .mapToInt(node -> tasks(node, shufflePartitions))
        .sum();
  }

  private static int tasks(LogicalPlan node, int shufflePartitions) {
    if (node instanceof RepartitionOperation spread) {
      return spread.shuffle() ? spread.numPartitions() : 0;
    }
    boolean shuffles =
        node instanceof Aggregate
            || node instanceof Deduplicate
            || node instanceof Distinct
            || node instanceof RebalancePartitions;
    return shuffles ? shufflePartitions : 0;
  }

  private static boolean isLive(LogicalPlan source) {
    if (!(source instanceof StreamingRelationV2 relation)) {
      return false;
    }
    String name = relation.source().map(Object::getClass).map(Class::getName).getOrElse(() -> "");
    return name.startsWith("tailrace.replay.") || name.startsWith("org.apache.spark.sql.kafka010.");
  }

  /** The analysed plan, with the common table expressions (WITH in SQL) inlined. */
  public static LogicalPlan read(Dataset<Row> frame) {
    var classic = (org.apache.spark.sql.classic.Dataset<Row>) frame;
    return new InlineCTE(true, false, false).apply(classic.queryExecution().analyzed());
  }

  private static Stream<LogicalPlan> nodes(LogicalPlan plan) {
    return Stream.concat(
        Stream.of(plan),
        JavaConverters.asJava(plan.children()).stream().flatMap(LivePlan::nodes));
  }
}
