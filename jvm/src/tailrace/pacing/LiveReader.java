package tailrace.pacing;

import java.io.IOException;
import java.lang.reflect.Field;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec;

/**
 * Reads a source in real-time mode like Spark, but checks the clock while no record arrives.
 *
 * <p>A source waits for a record until the batch is over. One that does not use {@link BatchClock},
 * such as Kafka's, sleeps through the early end of a batch: the batch would be abandoned, and its
 * results sent again. So it is asked repeatedly to wait for a short time.
 */
public final class LiveReader implements SupportsRealTimeRead<InternalRow> {
  /** How long a source may wait before its task checks the clock. */
  private static final Long SLICE_MS = 100L;

  private final SupportsRealTimeRead<InternalRow> source;
  private final TaskContext context = TaskContext.get();

  private LiveReader(SupportsRealTimeRead<InternalRow> source) {
    this.source = source;
  }

  /**
   * Makes a scan read this way. Spark has no hook for a reader, and finds the offsets of a batch by
   * the scan and its stream, so neither can be replaced: instead its factory of readers is.
   */
  public static void readFor(RealTimeStreamScanExec scan) {
    PartitionReaderFactory factory = scan.readerFactory(); // is made now, if it was not
    if (factory instanceof Factory) {
      return;
    }
    try {
      Field field = RealTimeStreamScanExec.class.getDeclaredField("readerFactory");
      field.setAccessible(true);
      field.set(scan, new Factory(factory));
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(
          "This version of Spark does not let a live source be read in slices: install a PySpark"
              + " that this version of Tailrace supports.",
          error);
    }
  }

  @Override
  public RecordStatus nextWithTimeout(Long startMs, Long timeoutMs) throws IOException {
    if (timeoutMs <= SLICE_MS) {
      return source.nextWithTimeout(startMs, timeoutMs);
    }
    RecordStatus status = source.nextWithTimeout(startMs, SLICE_MS);
    while (!status.hasRecord() && !BatchClock.isEnding(context)) {
      long nowMs = System.currentTimeMillis();
      long leftMs = startMs + timeoutMs - nowMs;
      if (leftMs <= 0) {
        break;
      }
      status = source.nextWithTimeout(nowMs, Math.min(leftMs, SLICE_MS));
    }
    return status;
  }

  @Override
  public boolean next() throws IOException {
    return source.next();
  }

  @Override
  public InternalRow get() {
    return source.get();
  }

  @Override
  public PartitionOffset getOffset() {
    return source.getOffset();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return source.currentMetricsValues();
  }

  @Override
  public void close() throws IOException {
    source.close();
  }

  /** Creates the readers on the executors. */
  private record Factory(PartitionReaderFactory source) implements PartitionReaderFactory {
    @Override
    @SuppressWarnings("unchecked") // real-time mode refuses sources of any other reader
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      var reader = (SupportsRealTimeRead<InternalRow>) source.createReader(partition);
      return new LiveReader(reader);
    }
  }
}
