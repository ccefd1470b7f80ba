package tailrace.handover;

import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;

/**
 * Which run of a flow a plan or a task belongs to.
 *
 * <p>Many flows share a JVM, and their steps may have the same names. So what the driver sets for
 * one of them is stored under an id, which is new for each run and the same for every query that
 * the run starts. Spark passes it on as a local property: from the thread that starts a query to
 * the thread that plans its batches, and from there to every task.
 */
public final class FlowId {
  /** The local property. */
  public static final String PROPERTY = "tailrace.graph";

  private FlowId() {}

  /** The flow of the batch that this thread plans; empty if there is none. */
  static String planned(SparkContext context) {
    return orEmpty(context.getLocalProperty(PROPERTY));
  }

  /** The flow of a task; empty if it does not belong to one. */
  static String of(TaskContext task) {
    return orEmpty(task.getLocalProperty(PROPERTY));
  }

  private static String orEmpty(String id) {
    return id == null ? "" : id;
  }
}
