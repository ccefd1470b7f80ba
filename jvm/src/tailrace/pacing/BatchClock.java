package tailrace.pacing;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.execution.datasources.v2.LowLatencyClock$;
import org.apache.spark.util.SystemClock;

/**
 * Lets a real-time batch end early.
 *
 * <p>A real-time batch reads until a clock says that its time is up, so a replaced clock can end
 * it: to stop a query without a batch that must be repeated, or to change its plan. This works if
 * driver and tasks share a JVM; otherwise a batch ends when its time is up.
 */
public final class BatchClock extends SystemClock {
  private static final long serialVersionUID = 1L;
  private static final String QUERY = "sql.streaming.queryId";
  private static final Set<String> ENDING = ConcurrentHashMap.newKeySet();

  /** Replaces Spark's clock by this one. */
  public static void install() {
    LowLatencyClock$.MODULE$.setClock(new BatchClock());
  }

  /** Ends the current batch of a query, and every one after it until {@link #goOn}. */
  public static void end(String queryId) {
    ENDING.add(queryId);
  }

  /** Lets the batches of a query run for their full time again. */
  public static void goOn(String queryId) {
    ENDING.remove(queryId);
  }

  /** Whether the batch of a task should end now. */
  public static boolean isEnding(TaskContext context) {
    return !ENDING.isEmpty() && isAmongThem(context);
  }

  private static boolean isAmongThem(TaskContext context) {
    if (context == null) {
      return false;
    }
    String query = context.getLocalProperty(QUERY);
    return query != null && ENDING.contains(query);
  }

  @Override
  public long getTimeMillis() {
    // Called for every record, and rarely is a batch ending.
    boolean ending = !ENDING.isEmpty() && isEnding(TaskContext.get());
    return ending ? Long.MAX_VALUE : System.currentTimeMillis();
  }
}
