package tailrace.handover;

import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.types.Types;
import org.apache.arrow.vector.types.Types.MinorType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.arrow.ArrowFieldWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * One column of a {@link Page}, in the layout of Arrow.
 *
 * <p>Spark's writers check and grow every buffer for every value. Numbers, times and texts, which
 * make up most records, are copied here in the form that they have in the row, and the page makes
 * sure that there is room. All other types are left to Spark's writers.
 */
abstract class Column implements AutoCloseable {
  /** Adds the value of a row at the given index, and returns its size in bytes. */
  abstract int add(InternalRow row, int ordinal, int number);

  /** Makes room for this many values. */
  abstract void fit(int capacity);

  /** Describes the buffers of this many values, in the form of Arrow's messages. */
  abstract void describe(int count, List<ArrowFieldNode> nodes, List<ArrowBuf> buffers);

  /** Removes all values. */
  abstract void clear();

  @Override
  public abstract void close();

  static Column of(Field field, BufferAllocator allocator) {
    MinorType type = Types.getMinorTypeForArrowType(field.getType());
    return switch (type) {
      case BIGINT, FLOAT8, TIMESTAMPMICRO, TIMESTAMPMICROTZ -> new Fixed(allocator, Long.BYTES);
      case INT, FLOAT4, DATEDAY -> new Fixed(allocator, Integer.BYTES);
      case VARCHAR, VARBINARY -> new Text(allocator, type == MinorType.VARCHAR);
      default -> new Other(field, allocator);
    };
  }

  /**
   * Whether a column of this type takes values from any row; otherwise only from Spark's own rows.
   */
  static boolean takesAnyRow(Field field) {
    return switch (Types.getMinorTypeForArrowType(field.getType())) {
      case BIGINT, TIMESTAMPMICRO, TIMESTAMPMICROTZ, INT, DATEDAY, VARCHAR, VARBINARY -> true;
      default -> false;
    };
  }

  /** A column that tracks nulls; it sends a null bitmap only if there are any. */
  private abstract static class Plain extends Column {
    final Memory values;
    private final Memory valid;
    private int nulls;

    Plain(BufferAllocator allocator) {
      values = new Memory(allocator);
      valid = new Memory(allocator);
    }

    abstract int put(InternalRow row, int ordinal, int number);

    abstract void putNothing(int number);

    @Override
    final int add(InternalRow row, int ordinal, int number) {
      if (row.isNullAt(ordinal)) {
        putNothing(number);
        setNull(number);
        return 0;
      }
      return put(row, ordinal, number);
    }

    private void setNull(int number) {
      if (nulls++ == 0) {
        valid.fill(0);
      }
      long place = valid.address + (number >> 3);
      Platform.putByte(null, place, (byte) (Platform.getByte(null, place) & ~(1 << (number & 7))));
    }

    @Override
    void fit(int capacity) {
      long before = valid.capacity();
      valid.fit((capacity + 7) / 8);
      if (nulls > 0) {
        valid.fill(before);
      }
    }

    @Override
    void describe(int count, List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
      nodes.add(new ArrowFieldNode(count, nulls));
      buffers.add(valid.first(nulls == 0 ? 0 : (count + 7) / 8));
    }

    @Override
    void clear() {
      nulls = 0;
    }

    @Override
    public void close() {
      values.close();
      valid.close();
    }
  }

  /** Values of four or eight bytes, which rows hold in the same form. */
  static final class Fixed extends Plain {
    private final int width;

    Fixed(BufferAllocator allocator, int width) {
      super(allocator);
      this.width = width;
    }

    @Override
    int put(InternalRow row, int ordinal, int number) {
      if (width == Long.BYTES) {
        Platform.putLong(null, values.address + 8L * number, row.getLong(ordinal));
      } else {
        Platform.putInt(null, values.address + 4L * number, row.getInt(ordinal));
      }
      return width;
    }

    @Override
    void putNothing(int number) {
      // the value in place of a null is ignored
    }

    /** Sets the first values to the same value. */
    void repeat(long value, int count) {
      for (int number = 0; number < count; number++) {
        Platform.putLong(null, values.address + 8L * number, value);
      }
    }

    @Override
    void fit(int capacity) {
      super.fit(capacity);
      values.fit((long) width * capacity);
    }

    @Override
    void describe(int count, List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
      super.describe(count, nodes, buffers);
      buffers.add(values.first((long) width * count));
    }
  }

  /** Strings of characters or bytes: the end of each, and all of them one after the other. */
  private static final class Text extends Plain {
    private static final int SHORT = 64;

    private final boolean characters;
    private final Memory ends;
    private int bytes;

    Text(BufferAllocator allocator, boolean characters) {
      super(allocator);
      this.characters = characters;
      ends = new Memory(allocator);
    }

    @Override
    int put(InternalRow row, int ordinal, int number) {
      if (row instanceof UnsafeRow unsafe) {
        long where = unsafe.getLong(ordinal); // its place in the row above, its size below
        long from = unsafe.getBaseOffset() + (where >>> 32);
        return put(unsafe.getBaseObject(), from, (int) where, number);
      }
      if (characters) {
        UTF8String text = row.getUTF8String(ordinal);
        return put(text.getBaseObject(), text.getBaseOffset(), text.numBytes(), number);
      }
      byte[] some = row.getBinary(ordinal);
      return put(some, Platform.BYTE_ARRAY_OFFSET, some.length, number);
    }

    private int put(Object base, long from, int size, int number) {
      int end = Math.addExact(bytes, size);
      if (end > values.capacity()) {
        values.fit(Math.max(end, 2 * values.capacity()));
      }
      copy(base, from, values.address + bytes, size);
      bytes = end;
      Platform.putInt(null, ends.address + 4L * (number + 1), end);
      return size;
    }

    /** Up to this length, starting a memory copy takes longer than copying byte by byte. */
    private static void copy(Object base, long from, long to, int size) {
      if (size > SHORT) {
        Platform.copyMemory(base, from, null, to, size);
        return;
      }
      int done = 0;
      for (; done + 8 <= size; done += 8) {
        Platform.putLong(null, to + done, Platform.getLong(base, from + done));
      }
      for (; done < size; done++) {
        Platform.putByte(null, to + done, Platform.getByte(base, from + done));
      }
    }

    @Override
    void putNothing(int number) {
      Platform.putInt(null, ends.address + 4L * (number + 1), bytes);
    }

    @Override
    void fit(int capacity) {
      super.fit(capacity);
      ends.fit(4L * (capacity + 1));
      Platform.putInt(null, ends.address, 0);
    }

    @Override
    void describe(int count, List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
      super.describe(count, nodes, buffers);
      buffers.add(ends.first(4L * (count + 1)));
      buffers.add(values.first(bytes));
    }

    @Override
    void clear() {
      super.clear();
      bytes = 0;
    }

    @Override
    public void close() {
      super.close();
      ends.close();
    }
  }

  /** All other types, by Spark's writers, which make room themselves. */
  private static final class Other extends Column {
    private final boolean fixed;
    private final FieldVector vector;
    private final ArrowFieldWriter writer;

    Other(Field field, BufferAllocator allocator) {
      fixed = UnsafeRow.isFixedLength(ArrowUtils.fromArrowField(field));
      vector = field.createVector(allocator);
      vector.allocateNew();
      writer = ArrowWriter$.MODULE$.createFieldWriter(vector);
    }

    @Override
    int add(InternalRow row, int ordinal, int number) {
      writer.write(row, ordinal);
      return fixed ? Long.BYTES : (int) row.getLong(ordinal); // such a row says so there
    }

    @Override
    void fit(int capacity) {}

    @Override
    void describe(int count, List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
      writer.finish();
      describe(vector, nodes, buffers);
    }

    private static void describe(
        FieldVector vector, List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
      nodes.add(new ArrowFieldNode(vector.getValueCount(), vector.getNullCount()));
      buffers.addAll(vector.getFieldBuffers());
      vector.getChildrenFromFields().forEach(child -> describe(child, nodes, buffers));
    }

    @Override
    void clear() {
      writer.reset();
    }

    @Override
    public void close() {
      vector.close();
    }
  }

  /** Memory that is written by address and moves only when it grows. */
  private static final class Memory {
    private final BufferAllocator allocator;
    private ArrowBuf held;
    private long address;

    Memory(BufferAllocator allocator) {
      this.allocator = allocator;
      held = allocator.getEmpty();
    }

    long capacity() {
      return held.capacity();
    }

    void fit(long bytes) {
      if (bytes > held.capacity()) {
        ArrowBuf larger = allocator.buffer(bytes);
        Platform.copyMemory(null, address, null, larger.memoryAddress(), held.capacity());
        held.close();
        held = larger;
        address = larger.memoryAddress();
      }
    }

    /** Sets all bits from a byte on. */
    void fill(long from) {
      Platform.setMemory(address + from, (byte) -1, held.capacity() - from);
    }

    /** The first bytes, for a reader. */
    ArrowBuf first(long bytes) {
      return held.writerIndex(bytes);
    }

    void close() {
      held.close();
    }
  }
}
