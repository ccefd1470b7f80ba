package tailrace.cluster;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system without a process per file.
 *
 * <p>Where Hadoop's native library is missing, as in every pip install of PySpark, the original
 * starts {@code chmod} for each file and directory that it creates. A streaming query creates two
 * log files per batch, and a sink some more: that takes most of the time of a small batch.
 */
public final class LocalFiles extends LocalFileSystem {
  /** Created by Hadoop, by class name. */
  public LocalFiles() {
    super(new Raw());
  }

  private static final class Raw extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      Files.setPosixFilePermissions(
          pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols(permission)));
    }

    private static String symbols(FsPermission permission) {
      return permission.getUserAction().SYMBOL
          + permission.getGroupAction().SYMBOL
          + permission.getOtherAction().SYMBOL;
    }
  }
}
