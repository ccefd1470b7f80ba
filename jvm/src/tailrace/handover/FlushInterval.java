package tailrace.handover;

import java.lang.reflect.Field;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.PipelinedShuffleManager;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.streaming.StreamingShuffleWriter;

/**
 * How often the buffers of a real-time shuffle are flushed, for each flow.
 *
 * <p>Spark has one setting for the whole JVM, {@code
 * spark.shuffle.streaming.networkBufferMaxWaitTimeMs}, which tasks read when they start. Here a
 * task of a flow uses the interval of its flow instead. That works if driver and tasks share a JVM,
 * as in local mode; on a cluster Spark's setting applies.
 */
public final class FlushInterval {
  private static final ConcurrentMap<String, Long> FLOWS = new ConcurrentHashMap<>();

  private FlushInterval() {}

  /** Sets the interval of a flow, for tasks that start from now on. */
  public static void set(String flow, double ms) {
    install();
    FLOWS.put(flow, Math.max(1, Math.round(ms)));
  }

  /** Removes a flow whose run is over. */
  public static void forget(String flow) {
    FLOWS.remove(flow);
  }

  /** Wraps Spark's shuffle manager; once for each SparkContext. */
  private static synchronized void install() {
    SparkEnv env = SparkEnv.get();
    PipelinedShuffleManager manager = env.pipelinedShuffleManager();
    if (manager instanceof Flushing) {
      return;
    }
    try {
      Field field = SparkEnv.class.getDeclaredField("_pipelinedShuffleManager");
      field.setAccessible(true);
      field.set(env, new Flushing(manager));
    } catch (ReflectiveOperationException error) {
      throw unfit(error);
    }
  }

  private static <K, V> ShuffleWriter<K, V> adjusted(ShuffleWriter<K, V> writer, TaskContext task) {
    Long wantedMs = FLOWS.get(FlowId.of(task));
    if (wantedMs != null && writer instanceof StreamingShuffleWriter) {
      try {
        Field field = StreamingShuffleWriter.class.getDeclaredField("MAX_BUFFERING_TIME_MS");
        field.setAccessible(true);
        field.setLong(writer, wantedMs); // it is not used before the writer begins to write
      } catch (ReflectiveOperationException error) {
        throw unfit(error);
      }
    }
    return writer;
  }

  private static IllegalStateException unfit(ReflectiveOperationException error) {
    return new IllegalStateException(
        "This version of Spark does not let a flow have a flush interval of its own: install a"
            + " PySpark that this version of Tailrace supports.",
        error);
  }

  /** Spark's shuffle, with writers that flush at the interval of their flow. */
  private record Flushing(PipelinedShuffleManager spark) implements PipelinedShuffleManager {
    @Override
    public <K, V, C> ShuffleHandle registerShuffle(
        int shuffle, ShuffleDependency<K, V, C> dependency) {
      return spark.registerShuffle(shuffle, dependency);
    }

    @Override
    public <K, V> ShuffleWriter<K, V> getWriter(
        ShuffleHandle handle, long map, TaskContext task, ShuffleWriteMetricsReporter metrics) {
      return adjusted(spark.getWriter(handle, map, task, metrics), task);
    }

    @Override
    public <K, C> ShuffleReader<K, C> getReader(
        ShuffleHandle handle, int from, int to, TaskContext task,
        ShuffleReadMetricsReporter metrics) {
      return spark.getReader(handle, from, to, task, metrics);
    }

    @Override
    public <K, C> ShuffleReader<K, C> getReader(
        ShuffleHandle handle, int fromMap, int toMap, int from, int to, TaskContext task,
        ShuffleReadMetricsReporter metrics) {
      return spark.getReader(handle, fromMap, toMap, from, to, task, metrics);
    }

    @Override
    public boolean unregisterShuffle(int shuffle) {
      return spark.unregisterShuffle(shuffle);
    }

    @Override
    public void stop() {
      spark.stop();
    }
  }
}
