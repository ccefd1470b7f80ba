package tailrace;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import scala.collection.JavaConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;
import tailrace.handover.HandOver;
import tailrace.pacing.LiveReader;
import tailrace.plan.LiveJoins;
import tailrace.probe.SinkProbe;
import tailrace.replay.ReplayStream;

/**
 * What Tailrace adds to a session ({@code spark.sql.extensions}): in real-time mode, chains of
 * steps get their records through {@link HandOver}, the static side of a join is broadcast ({@link
 * LiveJoins}), and sources check for the end of a batch while no record arrives ({@link
 * LiveReader}). Everything else is left as Spark planned it.
 */
public final class Extension extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectColumnar(session -> new Rules());
    extensions.injectPlannerStrategy(LiveJoins::new);
    return BoxedUnit.UNIT;
  }

  private static final class Rules extends ColumnarRule {
    @Override
    public Rule<SparkPlan> postColumnarTransitions() {
      return new Rule<>() {
        @Override
        public SparkPlan apply(SparkPlan plan) {
          return isRealTime(plan) ? replaced(plan) : plan;
        }
      };
    }
  }

  private static boolean isRealTime(SparkPlan plan) {
    return plan instanceof RealTimeStreamScanExec
        || JavaConverters.asJava(plan.children()).stream().anyMatch(Extension::isRealTime);
  }

  private static SparkPlan replaced(SparkPlan plan) {
    if (plan instanceof RealTimeStreamScanExec scan && !(scan.stream() instanceof ReplayStream)) {
      LiveReader.readFor(scan);
    }
    SparkPlan below = plan.mapChildren(Extension::replaced);
    if (below instanceof MapInArrowExec map && HandOver.isChain(map)) {
      return new ColumnarToRowExec(HandOver.of(map));
    }
    if (below instanceof FilterExec filter
        && filter.child() instanceof ColumnarToRowExec rows
        && rows.child() instanceof HandOver last) {
      return SinkProbe.in(filter.condition())
          .<SparkPlan>map(probe -> new ColumnarToRowExec(last.seenBy(probe)))
          .orElse(below);
    }
    return below;
  }
}
