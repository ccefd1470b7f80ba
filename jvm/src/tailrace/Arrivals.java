package tailrace;

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

/**
 * Counts, where records enter a flow, how long ago each one arrived.
 *
 * <p>A record's age is the time from its arrival to a reference moment of its batch. Ages are kept
 * per task as count, mean, sum of squared deviations and logarithmic bins, so that everything
 * merges exactly. A task that runs twice overwrites what it said before: nothing counts twice.
 */
public final class Arrivals extends AccumulatorV2<Long, String> {
  private static final long serialVersionUID = 1L;

  private final double smallestMs;
  private final double logGamma;
  private long referenceUs;
  private Map<Integer, Task> tasks = new TreeMap<>();
  private transient Task current;

  private Arrivals(double smallestMs, double logGamma) {
    this.smallestMs = smallestMs;
    this.logGamma = logGamma;
  }

  /**
   * Makes a counter that the driver can read.
   *
   * @param smallestMs the upper end of bin 0
   * @param gamma the ratio of the ends of neighbouring bins
   */
  public static Arrivals create(SparkContext context, double smallestMs, double gamma) {
    Arrivals arrivals = new Arrivals(smallestMs, Math.log(gamma));
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

  /** Forgets the last batch and begins the next, whose ages are counted to this moment. */
  public void begin(long nextReferenceUs) {
    tasks = new TreeMap<>();
    referenceUs = nextReferenceUs;
  }

  private void count(long arrivedUs) {
    if (current == null) {
      current = new Task();
      TaskContext context = TaskContext.get();
      tasks.put(context == null ? 0 : context.partitionId(), current);
    }
    double ageMs = Math.max(0.0, (referenceUs - arrivedUs) / 1e3);
    double ratio = Math.max(1.0, ageMs / smallestMs);
    current.add(ageMs, (int) Math.ceil(Math.log(ratio) / logGamma - 1e-9));
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
    Arrivals copy = new Arrivals(smallestMs, logGamma);
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

  /** One line a task: partition, first record in microseconds, count, mean, m2, bin:count ... */
  @Override
  public String value() {
    StringBuilder text = new StringBuilder();
    tasks.forEach((partition, task) -> task.print(text.append(partition).append(' ')));
    return text.toString();
  }

  /** What one task saw. */
  private static final class Task implements java.io.Serializable {
    private static final long serialVersionUID = 1L;
    private final long startedUs = tailrace.Clock.nowUs();
    private long[] bins = new long[256];
    private long count;
    private double mean;
    private double m2;

    private void add(double ageMs, int bin) {
      count++;
      double delta = ageMs - mean;
      mean += delta / count;
      m2 += delta * (ageMs - mean);
      if (bin >= bins.length) {
        bins = java.util.Arrays.copyOf(bins, Math.max(bin + 1, 2 * bins.length));
      }
      bins[bin]++;
    }

    private void print(StringBuilder text) {
      text.append(startedUs).append(' ').append(count).append(' ').append(mean).append(' ');
      text.append(m2);
      for (int bin = 0; bin < bins.length; bin++) {
        if (bins[bin] > 0) {
          text.append(' ').append(bin).append(':').append(bins[bin]);
        }
      }
      text.append('\n');
    }
  }
}
