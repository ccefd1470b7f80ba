package tailrace.replay;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A trace file, memory-mapped and checked once: due times, keys and payload sizes by record index.
 * Records are found by index alone, so every read of a trace gives the same rows.
 */
final class Trace {
  private static final String MAGIC = "TRTRACE2";

  /** The magic of a trace without a checksum; a checkpoint may hold one. */
  private static final String MAGIC_1 = "TRTRACE1";

  private static final int HEADER_BYTES = 40;
  private static final int KEPT_OPEN = 16;
  private static final long MAPPED_BYTES = 1L << 30;

  /** The most recently opened traces of this JVM; streams and readers hold their own references. */
  private static final Map<String, Trace> OPEN =
      new LinkedHashMap<>(KEPT_OPEN, 0.75f, true) {
        private static final long serialVersionUID = 1L;

        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Trace> eldest) {
          return size() > KEPT_OPEN;
        }
      };

  private final String path;
  private final String stamp;
  private final int records;
  private final LongBuffer dueUs;
  private final IntBuffer key;
  private final IntBuffer size;
  private final LongBuffer keyStart;
  private final ByteBuffer keyBlob;
  private final LongBuffer payloadStart;
  private final ByteBuffer payloadBlob;
  private final long fingerprint;
  private UTF8String[] keys;

  private Trace(String path, String stamp) throws IOException {
    this.path = path;
    this.stamp = stamp;
    long checksum;
    try (FileChannel channel = FileChannel.open(Path.of(path))) {
      Sections sections = new Sections(path, channel);
      ByteBuffer header = sections.header();
      long n = header.getLong();
      long keyCount = header.getLong();
      long keyBytes = header.getLong();
      long payloadBytes = header.getLong();
      if (n < 1 || keyCount < 1 || keyBytes < 0 || payloadBytes < 0) {
        throw unfit(path, "has a header that makes no sense; write it again");
      }
      dueUs = sections.next(n, Long.BYTES, "due times").asLongBuffer();
      key = sections.next(n, Integer.BYTES, "keys").asIntBuffer();
      size = sections.next(n, Integer.BYTES, "sizes").asIntBuffer();
      keyStart = sections.next(keyCount + 1, Long.BYTES, "key offsets").asLongBuffer();
      keyBlob = sections.next(keyBytes, 1, "key texts");
      boolean stored = payloadBytes > 0;
      payloadStart =
          stored ? sections.next(n + 1, Long.BYTES, "payload offsets").asLongBuffer() : null;
      payloadBlob = stored ? sections.next(payloadBytes, 1, "payloads") : null;
      records = (int) n;
      checksum = sections.end();
    }
    checkOffsets(keyStart, keyBlob.capacity(), "key");
    if (payloadStart != null) {
      checkOffsets(payloadStart, payloadBlob.capacity(), "payload");
    }
    fingerprint = checkRecords(checksum);
  }

  /** Opens a trace, or returns the open one if the file is still the same. */
  static Trace open(String path) {
    synchronized (OPEN) {
      try {
        Path file = Path.of(path);
        String stamp = Files.getLastModifiedTime(file) + "/" + Files.size(file);
        Trace trace = OPEN.get(path);
        if (trace == null || !trace.stamp.equals(stamp)) {
          trace = new Trace(path, stamp);
          OPEN.put(path, trace);
        }
        return trace;
      } catch (NoSuchFileException missing) {
        throw unfit(path, "does not exist here; every executor must find it at that path");
      } catch (IOException failure) {
        throw unfit(path, "cannot be read (" + failure + "); check its permissions");
      }
    }
  }

  static IllegalArgumentException unfit(String path, String why) {
    return new IllegalArgumentException("The trace file " + path + " " + why + ".");
  }

  String path() {
    return path;
  }

  int records() {
    return records;
  }

  /** A hash of the whole file, to compare those of driver and executors. */
  long fingerprint() {
    return fingerprint;
  }

  long dueUs(int index) {
    return dueUs.get(index);
  }

  int keyIndex(int index) {
    return key.get(index);
  }

  int size(int index) {
    return size.get(index);
  }

  boolean hasPayloads() {
    return payloadStart != null;
  }

  UTF8String payload(int index) {
    byte[] bytes = new byte[size.get(index)];
    payloadBlob.get((int) payloadStart.get(index), bytes);
    return UTF8String.fromBytes(bytes);
  }

  /** The key table; created at the first call, so the driver, which reads no rows, has none. */
  synchronized UTF8String[] keys() {
    if (keys == null) {
      UTF8String[] table = new UTF8String[keyStart.capacity() - 1];
      for (int k = 0; k < table.length; k++) {
        byte[] bytes = new byte[(int) (keyStart.get(k + 1) - keyStart.get(k))];
        keyBlob.get((int) keyStart.get(k), bytes);
        table[k] = UTF8String.fromBytes(bytes);
      }
      keys = table;
    }
    return keys;
  }

  /** How many records are due at or before a time, counted from the start of the replay. */
  int dueBy(long elapsedUs) {
    int low = 0;
    int high = records;
    while (low < high) {
      int middle = (low + high) >>> 1;
      if (dueUs.get(middle) <= elapsedUs) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  private void checkOffsets(LongBuffer starts, long blobBytes, String what) {
    int last = starts.capacity() - 1;
    boolean sound = starts.get(0) == 0 && starts.get(last) == blobBytes;
    for (int i = 0; sound && i < last; i++) {
      sound = starts.get(i) <= starts.get(i + 1);
    }
    if (!sound) {
      throw unfit(path, "has broken " + what + " offsets; write it again");
    }
  }

  private long checkRecords(long checksum) {
    long hash = checksum;
    long before = 0;
    int keyCount = keyStart.capacity() - 1;
    for (int i = 0; i < records; i++) {
      long due = dueUs.get(i);
      int k = key.get(i);
      int bytes = size.get(i);
      boolean payloadFits =
          payloadStart == null || payloadStart.get(i + 1) - payloadStart.get(i) == bytes;
      if (due < before || k < 0 || k >= keyCount || bytes < 0 || !payloadFits) {
        throw unfit(
            path,
            "is wrong at record " + i + " (due times must not fall, keys must be in the key table,"
                + " sizes must match the payloads); write it again");
      }
      before = due;
      hash = ((hash * 31 + due) * 31 + k) * 31 + bytes;
    }
    return hash;
  }

  /** Returns the sections of the file in order, each at the next multiple of eight bytes. */
  private static final class Sections {
    private final String path;
    private final FileChannel channel;
    private boolean summed;
    private long position = HEADER_BYTES;

    Sections(String path, FileChannel channel) {
      this.path = path;
      this.channel = channel;
    }

    ByteBuffer header() throws IOException {
      int present = (int) Math.min(channel.size(), HEADER_BYTES);
      ByteBuffer header = channel.map(FileChannel.MapMode.READ_ONLY, 0, present);
      byte[] start = new byte[Math.min(present, MAGIC.length())];
      header.get(start);
      String magic = new String(start, StandardCharsets.US_ASCII);
      if (!magic.equals(MAGIC) && !magic.equals(MAGIC_1)) {
        throw unfit(path, "is not a Tailrace trace (it does not begin with " + MAGIC + ")");
      }
      summed = magic.equals(MAGIC);
      if (present < HEADER_BYTES) {
        throw unfit(path, "is cut off in its header; write it again");
      }
      return header.order(ByteOrder.LITTLE_ENDIAN);
    }

    ByteBuffer next(long count, int width, String what) throws IOException {
      if (count < 0 || count > Integer.MAX_VALUE / width) {
        throw unfit(path, "has more than 2 GiB of " + what + "; split it into smaller traces");
      }
      long start = (position + 7) / 8 * 8;
      position = start + count * width;
      if (position > channel.size()) {
        throw unfit(path, "is cut off in its " + what + "; write it again");
      }
      return channel
          .map(FileChannel.MapMode.READ_ONLY, start, count * width)
          .order(ByteOrder.LITTLE_ENDIAN);
    }

    /** Checks that the file ends here, and that its checksum is right. */
    long end() throws IOException {
      long expected = summed ? next(1, Long.BYTES, "checksum").getLong() : 0;
      if (position != channel.size()) {
        throw unfit(path, "goes on after its end; write it again");
      }
      long found = sumUpTo(summed ? position - Long.BYTES : position);
      if (summed && found != expected) {
        throw unfit(path, "is damaged (its checksum is wrong); write it again");
      }
      return found;
    }

    private long sumUpTo(long end) throws IOException {
      CRC32 sum = new CRC32();
      for (long at = 0; at < end; at += MAPPED_BYTES) {
        long size = Math.min(MAPPED_BYTES, end - at);
        sum.update(channel.map(FileChannel.MapMode.READ_ONLY, at, size));
      }
      return sum.getValue();
    }
  }
}
