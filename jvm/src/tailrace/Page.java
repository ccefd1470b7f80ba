package tailrace;

import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * The records of one hand-over, written in Arrow as they come and used again for another one.
 *
 * <p>Its last column may be the one that says when each record entered. Nobody asks for more than
 * the mean, so all records get that, and where they come in crowds not each of them is timed.
 */
final class Page implements AutoCloseable {
  /** The column, last of the input, that says when a record entered the open batch. */
  static final String STAMP = "_tailrace_read";

  /** A page that is as long as the last one has its clock read so often. */
  private static final int READINGS = 64;

  private static final int FIRST_CAPACITY = 64;

  private final Intake.Taker intake;
  private final Column[] columns;
  private final Column.Fixed stamps;
  private final ArrowBuf nothing;
  private int capacity;
  private int records;
  private long bytes;
  private int every = 1;
  private long openedUs;
  private long nowUs;
  private long enteredUs;

  Page(Intake.Taker intake, List<Field> fields, BufferAllocator allocator) {
    this.intake = intake;
    int last = fields.size() - 1;
    boolean stamped = last >= 0 && fields.get(last).getName().equals(STAMP);
    columns =
        fields.stream()
            .limit(stamped ? last : fields.size())
            .map(field -> Column.of(field, allocator))
            .toArray(Column[]::new);
    stamps = stamped ? new Column.Fixed(allocator, Long.BYTES) : null;
    nothing = allocator.getEmpty();
    fit(FIRST_CAPACITY);
  }

  int records() {
    return records;
  }

  /** How much it holds. */
  long bytes() {
    return bytes;
  }

  void add(InternalRow row) {
    InternalRow computed = intake.computed(row);
    if (records == capacity) {
      fit(2 * capacity);
    }
    for (int column = 0; column < columns.length; column++) {
      int place = intake.place(column);
      bytes +=
          place < 0
              ? columns[column].add(computed, -1 - place, records)
              : columns[column].add(row, place, records);
    }
    if (stamps != null) {
      stamp();
    }
    records++;
  }

  private void stamp() {
    if (records % every == 0) {
      nowUs = Clock.nowUs();
      openedUs = records == 0 ? nowUs : openedUs;
    }
    enteredUs += nowUs - openedUs;
  }

  private void fit(int records) {
    capacity = records;
    for (Column column : columns) {
      column.fit(records);
    }
    if (stamps != null) {
      stamps.fit(records);
    }
  }

  /** Its records as one column, a struct, which is what Python expects; to be closed. */
  ArrowRecordBatch batch() {
    List<ArrowFieldNode> nodes = new ArrayList<>();
    List<ArrowBuf> buffers = new ArrayList<>();
    nodes.add(new ArrowFieldNode(records, 0));
    buffers.add(nothing);
    for (Column column : columns) {
      column.describe(records, nodes, buffers);
    }
    if (stamps != null) {
      stamps.repeat(openedUs + enteredUs / Math.max(1, records), records);
      stamps.describe(records, nodes, buffers);
    }
    return new ArrowRecordBatch(records, nodes, buffers);
  }

  void clear() {
    every = Math.max(1, records / READINGS);
    records = 0;
    bytes = 0;
    enteredUs = 0;
    for (Column column : columns) {
      column.clear();
    }
  }

  @Override
  public void close() {
    for (Column column : columns) {
      column.close();
    }
    if (stamps != null) {
      stamps.close();
    }
  }
}
