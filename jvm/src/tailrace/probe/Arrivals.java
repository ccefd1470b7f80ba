package tailrace.probe;

import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.util.AccumulatorV2;
import scala.Option;
import tailrace.pacing.Clock;

/**
 * Counts, where records enter a flow, how long ago each one arrived.
 *
 * <p>A record's age is the time from its arrival to a reference moment of its batch. Ages are kept
 * per task as count, mean, sum of squared deviations and logarithmic bins, so that everything
 * merges exactly. A task that runs twice overwrites its earlier values: nothing counts twice.
 */
public final class Arrivals extends AccumulatorV2<Long, String> {
  private static final long serialVersionUID = 1L;

  private final Ages.Scale scale;
  private long referenceUs;
  private Map<Integer, Task> tasks = new TreeMap<>();
  private transient Task current;

  private Arrivals(Ages.Scale scale) {
    this.scale = scale;
  }

  /**
   * Creates a counter that the driver can read.
   *
   * @param smallestMs the upper end of bin 0
   * @param gamma the ratio of the ends of neighbouring bins
   */
  public static Arrivals create(SparkContext context, double smallestMs, double gamma) {
    Arrivals arrivals = new Arrivals(new Ages.Scale(smallestMs, gamma));
    arrivals.register(context, Option.empty(), false);
    return arrivals;
  }

  /**
   * The counter as a filter that lets every record pass. Marked non-deterministic, so that the
   * optimiser neither drops nor moves it.
   */
  public UserDefinedFunction asFilter() {
    UDF1<Long, Boolean> pass =
        arrivedUs -> {
          count(arrivedUs == null ? referenceUs : arrivedUs);
          return Boolean.TRUE;
        };
    return functions.udf(pass, DataTypes.BooleanType).asNondeterministic();
  }

  /** Clears the last batch and starts the next, with ages measured up to this time. */
  public void begin(long nextReferenceUs) {
    tasks = new TreeMap<>();
    referenceUs = nextReferenceUs;
  }

  private void count(long arrivedUs) {
    if (current == null) {
      current = new Task(new Ages(scale));
      TaskContext context = TaskContext.get();
      tasks.put(context == null ? 0 : context.partitionId(), current);
    }
    current.ages.add(Math.max(0, referenceUs - arrivedUs));
  }

  @Override
  public void add(Long arrivedUs) {
    count(arrivedUs);
  }

  @Override
  public boolean isZero() {
    return tasks.isEmpty();
  }

  @Override
  public AccumulatorV2<Long, String> copy() {
    Arrivals copy = new Arrivals(scale);
    copy.referenceUs = referenceUs;
    copy.tasks = new TreeMap<>(tasks);
    return copy;
  }

  @Override
  public void reset() {
    tasks = new TreeMap<>();
    current = null;
  }

  @Override
  public void merge(AccumulatorV2<Long, String> other) {
    tasks.putAll(((Arrivals) other).tasks);
  }

  /** One line per task: partition, first record in microseconds, count, mean, m2, bin:count ... */
  @Override
  public String value() {
    StringBuilder text = new StringBuilder();
    tasks.forEach((partition, task) -> task.print(text.append(partition).append(' ')));
    return text.toString();
  }

  /** The counts of one task. */
  private static final class Task implements java.io.Serializable {
    private static final long serialVersionUID = 1L;
    private final long startedUs = Clock.nowUs();
    private final Ages ages;

    Task(Ages ages) {
      this.ages = ages;
    }

    private void print(StringBuilder text) {
      text.append(startedUs).append(' ').append(ages.count()).append(' ').append(ages.meanMs());
      text.append(' ').append(ages.m2()).append(' ');
      ages.print(text, "", ":", " ");
      text.append('\n');
    }
  }
}
