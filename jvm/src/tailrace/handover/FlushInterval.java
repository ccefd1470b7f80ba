package tailrace.handover;

import org.apache.spark.SparkEnv;

/**
 * How often the buffers of a real-time shuffle are swept.
 *
 * <p>Tasks read it from the settings of their JVM when they start, so that in local mode, where
 * that is the driver's, it can change from batch to batch; on a cluster it stays as it was set.
 */
public final class FlushInterval {
  private static final String KEY = "spark.shuffle.streaming.networkBufferMaxWaitTimeMs";

  private FlushInterval() {}

  /** Sets the time between two sweeps for tasks that start from now on. */
  public static void every(double ms) {
    SparkEnv.get().conf().set(KEY, Long.toString(Math.max(1, Math.round(ms))));
  }
}
