package tailrace.replay;

import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A row that moves over the records of a trace and creates a column only when it is read. Spark
 * does not prune columns of a stream, so this is what makes an unused payload free.
 */
final class ReplayRow extends GenericInternalRow {
  private static final long serialVersionUID = 1L;
  private static final int SEQ = 0;
  private static final int DUE = 1;
  private static final int KEY = 2;
  private static final int COLUMNS = 4;
  private static final byte[] FILLER_UNIT =
      "abcdefghijklmnopqrstuvwxyz0123456789".getBytes(StandardCharsets.US_ASCII);

  private final transient Trace trace;
  private final transient UTF8String[] keys;
  private final long startUs;
  private int index;
  private byte[] filler = FILLER_UNIT;
  private UTF8String payload = UTF8String.EMPTY_UTF8;

  ReplayRow(Trace trace, long startUs) {
    super(new Object[COLUMNS]);
    this.trace = trace;
    this.keys = trace.keys();
    this.startUs = startUs;
  }

  void moveTo(int recordIndex) {
    index = recordIndex;
  }

  @Override
  public boolean isNullAt(int column) {
    return false;
  }

  @Override
  public long getLong(int column) {
    return column == SEQ ? index : startUs + trace.dueUs(index);
  }

  @Override
  public UTF8String getUTF8String(int column) {
    if (column == KEY) {
      return keys[trace.keyIndex(index)];
    }
    return trace.hasPayloads() ? trace.payload(index) : filler(trace.size(index));
  }

  @Override
  public Object genericGet(int column) {
    return column == SEQ || column == DUE ? (Object) getLong(column) : getUTF8String(column);
  }

  @Override
  public GenericInternalRow copy() {
    Object[] values = new Object[COLUMNS];
    for (int column = 0; column < COLUMNS; column++) {
      values[column] = genericGet(column);
    }
    return new GenericInternalRow(values);
  }

  /** The first {@code size} bytes of an endless repetition of letters and digits. */
  private UTF8String filler(int size) {
    if (size != payload.numBytes()) {
      if (size > filler.length) {
        byte[] longer = new byte[Math.max(size, 2 * filler.length)];
        for (int i = 0; i < longer.length; i++) {
          longer[i] = FILLER_UNIT[i % FILLER_UNIT.length];
        }
        filler = longer;
      }
      payload = UTF8String.fromBytes(filler, 0, size);
    }
    return payload;
  }
}
