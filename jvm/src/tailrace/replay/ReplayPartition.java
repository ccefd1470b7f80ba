package tailrace.replay;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/**
 * The records of one task: of every {@code stride}-th record of the trace from {@code partition}
 * on, those numbered {@code from} (inclusive) to {@code until} (exclusive).
 */
record ReplayPartition(
    String trace, long fingerprint, long startUs, int partition, int stride, int from, int until)
    implements InputPartition {

  /** The index in the trace of a record of this partition. */
  int record(int number) {
    return number * stride + partition;
  }

  /** How many of the first {@code records} records of a trace belong to a partition. */
  static int share(int records, int partition, int stride) {
    return (int) (((long) records - partition + stride - 1) / stride);
  }

  /** Where a real-time task stopped: the number of the next record in its partition. */
  record End(long startUs, int partition, int next) implements PartitionOffset {}
}
