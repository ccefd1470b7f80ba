package tailrace.replay;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.concurrent.locks.LockSupport;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import tailrace.pacing.BatchClock;
import tailrace.pacing.Clock;

/**
 * Reads one partition of a trace through one row that is reused for every record. In real-time mode
 * it parks until the next record is due.
 */
final class ReplayReader implements SupportsRealTimeRead<InternalRow> {
  private static final RecordStatus RECORD = RecordStatus.newStatusWithoutArrivalTime(true);
  private static final RecordStatus NONE = RecordStatus.newStatusWithoutArrivalTime(false);

  /**
   * The kernel wakes a parked thread about this late, so the rest of the time is spent spinning;
   * but not if records follow each other faster than that, which would waste a core.
   */
  private static final long SPIN_NS = 50_000;

  /** A task may be killed, or its batch ended, without an interrupt: it checks this often. */
  private static final long LOOK_UP_NS = 20_000_000;

  private final ReplayPartition task;
  private final Trace trace;
  private final ReplayRow row;
  private final TaskContext context = TaskContext.get();
  private int next;

  /** The last reading of the clock: records due by then need no new one. */
  private long seenUs;

  /** When the previous record was due. */
  private long beforeUs;

  private ReplayReader(ReplayPartition task) {
    this.task = task;
    trace = Trace.open(task.trace());
    if (trace.fingerprint() != task.fingerprint()) {
      throw Trace.unfit(
          task.trace(),
          "is not the one that the stream was started with; restore it here, or restart the"
              + " stream with a new checkpoint");
    }
    row = new ReplayRow(trace, task.startUs());
    next = task.from();
  }

  @Override
  public boolean next() {
    if (next >= task.until()) {
      return false;
    }
    row.moveTo(task.record(next));
    next++;
    return true;
  }

  @Override
  public RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
    long dueUs =
        next < task.until() ? task.startUs() + trace.dueUs(task.record(next)) : Long.MAX_VALUE;
    if (dueUs > seenUs) {
      seenUs = Clock.nowUs();
      long deadlineUs = seenUs + timeoutMs * 1000;
      if (!waitUntil(Math.min(dueUs, deadlineUs)) || dueUs > deadlineUs) {
        return NONE;
      }
    }
    beforeUs = dueUs;
    return next() ? RECORD : NONE;
  }

  @Override
  public InternalRow get() {
    return row;
  }

  @Override
  public PartitionOffset getOffset() {
    return new ReplayPartition.End(task.startUs(), task.partition(), next);
  }

  @Override
  public void close() {
    // The mapping is shared and freed with its last user.
  }

  /** Waits, but not beyond the end of the batch; returns whether the time was reached. */
  private boolean waitUntil(long timeUs) throws InterruptedIOException {
    long spinNs = (timeUs - beforeUs) * 1000 > SPIN_NS ? SPIN_NS : 0;
    for (; seenUs < timeUs; seenUs = Clock.nowUs()) {
      if (BatchClock.isEnding(context)) {
        return false;
      }
      long leftNs = (timeUs - seenUs) * 1000;
      if (leftNs > spinNs) {
        LockSupport.parkNanos(Math.min(leftNs - spinNs, LOOK_UP_NS));
        if (Thread.currentThread().isInterrupted() || context != null && context.isInterrupted()) {
          throw new InterruptedIOException("The replay was stopped while waiting for a record.");
        }
      } else {
        Thread.onSpinWait();
      }
    }
    return true;
  }

  /** Creates the readers on the executors. */
  record Factory() implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return new ReplayReader((ReplayPartition) partition);
    }
  }
}
