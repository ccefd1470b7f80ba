package tailrace.replay;

import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import tailrace.pacing.Clock;

/**
 * The driver's side of a replay. In micro-batches it offers the records that are due by now; in
 * real-time mode it gives each task its whole partition, and the tasks wait for due times
 * themselves.
 */
public final class ReplayStream
    implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode {
  private final ReplayOptions options;
  private final Trace trace;
  private Long frozenUs;
  private ReplayOffset first;
  private long startUs;

  ReplayStream(ReplayOptions options) {
    this.options = options;
    this.trace = Trace.open(options.trace());
  }

  @Override
  public Offset initialOffset() {
    if (first == null) {
      Long given = options.startUs();
      first = offsetAt(given == null ? nowUs() / 1000 * 1000 : given, p -> 0);
    }
    return first;
  }

  @Override
  public Offset deserializeOffset(String json) {
    ReplayOffset offset = ReplayOffset.parse(json);
    if (offset.partitions() != options.partitions()) {
      throw new IllegalArgumentException(
          "The checkpoint was written with " + offset.partitions() + " replay partitions and the"
              + " option says " + options.partitions() + "; set partitions to "
              + offset.partitions() + " or use a new checkpoint.");
    }
    for (int p = 0; p < offset.partitions(); p++) {
      if (offset.next(p) > share(trace.records(), p)) {
        throw Trace.unfit(
            trace.path(),
            "has fewer records than the checkpoint has read; restore it or use a new checkpoint");
      }
    }
    return offset;
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    Long most = options.maxRecordsPerBatch();
    return most == null ? ReadLimit.allAvailable() : ReadLimit.maxRows(most);
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    ReplayOffset from = (ReplayOffset) start;
    startUs = from.startUs();
    int due = trace.dueBy(nowUs() - startUs);
    int end = limit instanceof ReadMaxRows rows ? within(from, due, rows.maxRows()) : due;
    return offsetAt(startUs, p -> Math.max(from.next(p), share(end, p)));
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks this source with a read limit.");
  }

  @Override
  public Offset reportLatestOffset() {
    int due = trace.dueBy(nowUs() - startUs);
    return offsetAt(startUs, p -> share(due, p));
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    frozenUs = Clock.nowUs();
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    ReplayOffset from = (ReplayOffset) start;
    ReplayOffset to = (ReplayOffset) end;
    // The end was logged; the start of a repeated first batch was not.
    return plan(to.startUs(), from, to::next);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    ReplayOffset from = (ReplayOffset) start;
    return plan(from.startUs(), from, p -> share(trace.records(), p));
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] ends) {
    int[] next = new int[options.partitions()];
    for (PartitionOffset offset : ends) {
      ReplayPartition.End end = (ReplayPartition.End) offset;
      next[end.partition()] = end.next();
      startUs = end.startUs();
    }
    return new ReplayOffset(startUs, next);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ReplayReader.Factory();
  }

  @Override
  public void commit(Offset end) {
    // A trace keeps its records: there is nothing to release.
  }

  @Override
  public void stop() {
    // The mapping is shared and freed with its last user.
  }

  private long nowUs() {
    return frozenUs == null ? Clock.nowUs() : frozenUs;
  }

  private int share(int records, int partition) {
    return ReplayPartition.share(records, partition, options.partitions());
  }

  private ReplayOffset offsetAt(long replayStartUs, IntUnaryOperator next) {
    return new ReplayOffset(
        replayStartUs, IntStream.range(0, options.partitions()).map(next).toArray());
  }

  private InputPartition[] plan(long replayStartUs, ReplayOffset from, IntUnaryOperator until) {
    InputPartition[] tasks = new InputPartition[options.partitions()];
    for (int p = 0; p < tasks.length; p++) {
      tasks[p] =
          new ReplayPartition(
              trace.path(), trace.fingerprint(), replayStartUs, p, tasks.length,
              from.next(p), until.applyAsInt(p));
    }
    return tasks;
  }

  /** The largest trace prefix, up to {@code due}, that holds at most {@code most} new records. */
  private int within(ReplayOffset from, int due, long most) {
    int low = 0;
    int high = due;
    while (low < high) {
      int middle = (low + high + 1) >>> 1;
      long added =
          IntStream.range(0, from.partitions())
              .mapToLong(p -> Math.max(0, share(middle, p) - from.next(p)))
              .sum();
      if (added <= most) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
}
