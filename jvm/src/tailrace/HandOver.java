package tailrace;

import java.util.Arrays;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.JavaConverters;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction2;

/**
 * Runs a chain of Python steps on records that come one by one.
 *
 * <p>Spark's own operator asks for the next record before it sends a full Arrow batch, so that a
 * record waits for its successor, and sends batches of a fixed size. This one collects records in
 * an {@link OpenBatch} that is sent when it is old enough or full: the output batch of Lohrmann
 * 2016, section 4.5.2, whose lifetime can be changed while it runs.
 */
final class HandOver extends SparkPlan {
  private static final long serialVersionUID = 1L;
  private static final String CHAIN = "tailrace:";

  private final MapInArrowExec original;

  HandOver(MapInArrowExec original) {
    this.original = original;
  }

  static boolean isChain(MapInArrowExec map) {
    return map.func() instanceof PythonUDF udf && udf.name().startsWith(CHAIN);
  }

  private String chain() {
    return ((PythonUDF) original.func()).name().substring(CHAIN.length());
  }

  @Override
  public RDD<InternalRow> doExecute() {
    RDD<InternalRow> input = original.child().execute();
    return input.mapPartitionsWithIndexInternal(
        new Run(original, chain()), false, false, false, ClassTag$.MODULE$.apply(InternalRow.class));
  }

  @Override
  public Seq<Attribute> output() {
    return original.output();
  }

  @Override
  public AttributeSet producedAttributes() {
    return original.producedAttributes();
  }

  @Override
  public Partitioning outputPartitioning() {
    return original.outputPartitioning();
  }

  @Override
  public Map<String, SQLMetric> metrics() {
    return original.metrics();
  }

  @Override
  public Seq<SparkPlan> children() {
    return original.children();
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new HandOver((MapInArrowExec) original.withNewChildren(children));
  }

  @Override
  public int productArity() {
    return 1;
  }

  @Override
  public Object productElement(int index) {
    return original;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof HandOver;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof HandOver that && original.equals(that.original);
  }

  @Override
  public int hashCode() {
    return original.hashCode();
  }

  /** What a task does; all that it needs travels with it. */
  private static final class Run
      extends AbstractFunction2<Object, Iterator<InternalRow>, Iterator<InternalRow>>
      implements java.io.Serializable {
    private static final long serialVersionUID = 1L;

    private final Lifetime lifetime;
    private final Seq<Tuple2<ChainedPythonFunctions, Object>> functions;
    private final int evalType;
    private final StructType input;
    private final Seq<Attribute> output;
    private final String timeZone;
    private final boolean largeTypes;
    private final Map<String, String> settings;
    private final Map<String, SQLMetric> metrics;

    Run(MapInArrowExec original, String chain) {
      PythonUDF udf = (PythonUDF) original.func();
      ChainedPythonFunctions function = new ChainedPythonFunctions(listed(udf.func()));
      lifetime = Lifetime.of(chain);
      functions = listed(new Tuple2<>(function, udf.resultId().id()));
      evalType = original.pythonEvalType();
      input = original.child().schema();
      output = original.output();
      timeZone = original.conf().sessionLocalTimeZone();
      largeTypes = original.conf().arrowUseLargeVarTypes();
      settings = ArrowPythonRunner.getPythonRunnerConfMap(original.conf());
      metrics = original.pythonMetrics();
    }

    @Override
    public Iterator<InternalRow> apply(Object index, Iterator<InternalRow> records) {
      TaskContext context = TaskContext.get();
      OpenBatch batches = new OpenBatch(records, input, lifetime, context);
      Iterator<ColumnarBatch> results =
          new Unbuffered(this).compute(batches, context.partitionId(), context);
      batches.start();
      return new Rows(results, output, batches);
    }
  }

  /** Sends and receives at the same time, and nothing stays in a buffer. */
  @SuppressWarnings("unchecked") // Scala's types say more than Java's
  private static final class Unbuffered extends ArrowPythonRunner {
    private static final int NO_BUFFER = 8;

    Unbuffered(Run task) {
      super(
          task.functions, task.evalType, new int[][] {{0}},
          new StructType().add("struct", task.input), task.timeZone, task.largeTypes,
          task.settings, task.metrics, Option.empty(), Option.empty());
    }

    @Override
    public boolean pipelinedEnabled() {
      return true;
    }

    @Override
    public int bufferSize() {
      return NO_BUFFER;
    }
  }

  @SuppressWarnings("deprecation") // the replacement is Scala's own and not for Java
  private static <T> Seq<T> listed(T only) {
    return JavaConverters.asScalaBuffer(Arrays.asList(only)).toList();
  }

  /** The rows of the batches that come back. */
  private static final class Rows extends AbstractIterator<InternalRow> {
    private final Iterator<ColumnarBatch> batches;
    private final OpenBatch origin;
    private final int columns;
    private final UnsafeProjection projection;
    private java.util.Iterator<InternalRow> rows = java.util.Collections.emptyIterator();

    @SuppressWarnings("unchecked") // an attribute is an expression
    Rows(Iterator<ColumnarBatch> batches, Seq<Attribute> output, OpenBatch origin) {
      this.batches = batches;
      this.origin = origin;
      columns = output.size();
      projection = UnsafeProjection.create((Seq<Expression>) (Seq<?>) output, output);
    }

    @Override
    public boolean hasNext() {
      while (!rows.hasNext()) {
        if (!batches.hasNext()) {
          return false;
        }
        rows = flattened(batches.next()).rowIterator();
        origin.returned();
      }
      return true;
    }

    /** Python returns one column, a struct of all columns. */
    private ColumnarBatch flattened(ColumnarBatch batch) {
      ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
      ColumnVector[] vectors = new ColumnVector[columns];
      for (int column = 0; column < columns; column++) {
        vectors[column] = struct.getChild(column);
      }
      return new ColumnarBatch(vectors, batch.numRows());
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new java.util.NoSuchElementException();
      }
      return projection.apply(rows.next());
    }
  }
}
