package tailrace.handover;

import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.types.Types.MinorType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column that came back from Python, lent to its reader: the stream owns and refills it, so
 * closing it does nothing.
 *
 * <p>Arrow checks every access twice. Here nulls are checked once per batch, and values of the most
 * frequent types are read by address.
 */
final class BorrowedColumn extends ArrowColumnVector {
  private final FieldVector vector;
  private final boolean wide;
  private boolean hasNulls;
  private long values;
  private long ends;

  BorrowedColumn(FieldVector vector) {
    super(vector);
    this.vector = vector;
    MinorType type = vector.getMinorType();
    wide =
        type == MinorType.BIGINT
            || type == MinorType.TIMESTAMPMICRO
            || type == MinorType.TIMESTAMPMICROTZ;
  }

  /** Must be called after its values have changed. */
  void look() {
    hasNulls = vector.getNullCount() > 0;
    if (wide) {
      values = vector.getDataBufferAddress();
    } else if (vector.getMinorType() == MinorType.VARCHAR) {
      values = vector.getDataBufferAddress();
      ends = vector.getOffsetBufferAddress();
    }
  }

  @Override
  public boolean hasNull() {
    return hasNulls;
  }

  @Override
  public boolean isNullAt(int row) {
    return hasNulls && super.isNullAt(row);
  }

  @Override
  public long getLong(int row) {
    return wide ? Platform.getLong(null, values + 8L * row) : super.getLong(row);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    if (ends == 0 || isNullAt(row)) {
      return super.getUTF8String(row);
    }
    int start = Platform.getInt(null, ends + 4L * row);
    int end = Platform.getInt(null, ends + 4L * row + 4);
    return UTF8String.fromAddress(null, values + start, end - start);
  }

  @Override
  public void close() {}
}
