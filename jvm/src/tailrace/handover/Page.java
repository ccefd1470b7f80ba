package tailrace.handover;

import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.catalyst.InternalRow;
import tailrace.pacing.Clock;

/**
 * The records of one hand-over, written as Arrow when they arrive; reused for later hand-overs.
 *
 * <p>Its last column may hold the time when each record entered it. Only the mean is used, so all
 * records get the mean, and when many arrive at once only some of them are timed.
 */
final class Page implements AutoCloseable {
  /** How often the clock is read for a page that is as long as the previous one. */
  private static final int READINGS = 64;

  private static final int FIRST_CAPACITY = 64;

  private final InputProjection.Taker taker;
  private final Column[] columns;
  private final boolean stamped;
  private final ArrowBuf nothing;
  private int capacity;
  private int records;
  private long bytes;
  private int every = 1;
  private long openedUs;
  private long nowUs;
  private long sinceOpenedUs;

  Page(InputProjection.Taker taker, List<Field> fields, BufferAllocator allocator) {
    this.taker = taker;
    columns =
        fields.stream().map(field -> Column.of(field, allocator)).toArray(Column[]::new);
    stamped = taker.columns() < columns.length;
    nothing = allocator.getEmpty();
    fit(FIRST_CAPACITY);
  }

  int records() {
    return records;
  }

  /** Its number of records. */
  long bytes() {
    return bytes;
  }

  void add(InternalRow row) {
    if (records == capacity) {
      fit(2 * capacity);
    }
    InternalRow computed = taker.computed(row);
    for (int column = 0; column < taker.columns(); column++) {
      int place = taker.place(column);
      bytes +=
          place < 0
              ? columns[column].add(computed, -1 - place, records)
              : columns[column].add(row, place, records);
    }
    if (records % every == 0) {
      nowUs = Clock.nowUs();
    }
    if (records == 0) {
      openedUs = nowUs;
    }
    sinceOpenedUs += nowUs - openedUs;
    records++;
  }

  private void fit(int wanted) {
    capacity = wanted;
    for (Column column : columns) {
      column.fit(wanted);
    }
  }

  /** Its records as one column, a struct, which is what Python expects; to be closed. */
  ArrowRecordBatch batch() {
    if (stamped) {
      long meanUs = openedUs + sinceOpenedUs / Math.max(1, records);
      ((Column.Fixed) columns[columns.length - 1]).repeat(meanUs, records);
    }
    List<ArrowFieldNode> nodes = new ArrayList<>();
    List<ArrowBuf> buffers = new ArrayList<>();
    nodes.add(new ArrowFieldNode(records, 0));
    buffers.add(nothing);
    for (Column column : columns) {
      column.describe(records, nodes, buffers);
    }
    return new ArrowRecordBatch(records, nodes, buffers);
  }

  void clear() {
    every = Math.max(1, records / READINGS);
    records = 0;
    bytes = 0;
    sinceOpenedUs = 0;
    for (Column column : columns) {
      column.clear();
    }
  }

  @Override
  public void close() {
    for (Column column : columns) {
      column.close();
    }
  }
}
