import com.sun.tools.attach.VirtualMachine;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.Locale;
import java.util.Set;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Reads a broker's counters over JMX: it answers each line on standard input with a line of JSON. "gc" runs a full
 * collection first, so that the heap holds only live objects. The broker needs no flag: the agent is attached.
 */
public final class Beans {
  private Beans() {}

  public static void main(String[] arguments) throws Exception {
    String address = attached(arguments[0]);
    try (var connector = JMXConnectorFactory.connect(new JMXServiceURL(address))) {
      MBeanServerConnection broker = connector.getMBeanServerConnection();
      var memory = ManagementFactory.getPlatformMXBean(broker, java.lang.management.MemoryMXBean.class);
      var threads = ManagementFactory.getPlatformMXBean(broker, java.lang.management.ThreadMXBean.class);
      long asked = 0;
      var lines = new BufferedReader(new InputStreamReader(System.in));
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        long before = collecting(broker);
        if (line.equals("gc")) {
          memory.gc();
          asked += collecting(broker) - before; // requested here, not by the broker
        }
        System.out.printf(
            Locale.ROOT,
            "{\"beans\": %d, \"client_beans\": %d, \"heap\": %d, \"gc_ms\": %d, \"looking_ms\": %d, "
                + "\"threads\": %d, \"connections\": %.0f, \"made\": %.0f, \"names\": %d, \"asked\": %.0f, \"ids\": %.0f}%n",
            broker.queryNames(null, null).size(),
            broker.queryNames(new ObjectName("kafka.server:client-id=*,*"), null).size(),
            memory.getHeapMemoryUsage().getUsed(),
            collecting(broker) - asked,
            asked,
            threads.getThreadCount(),
            sum(broker, "kafka.server:type=socket-server-metrics,listener=PLAINTEXT,*", "connection-count"),
            sum(broker, "kafka.server:type=socket-server-metrics,listener=PLAINTEXT,*", "connection-creation-total"),
            broker.queryNames(new ObjectName("kafka.server:type=Produce,client-id=*,*"), null).size(),
            sum(broker, "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=InitProducerId,*", "Count"),
            sum(broker, "kafka.server:type=ReplicaManager,name=ProducerIdCount", "Value"));
      }
    }
  }

  private static String attached(String pid) throws Exception {
    VirtualMachine machine = VirtualMachine.attach(pid);
    try {
      return machine.startLocalManagementAgent();
    } finally {
      machine.detach();
    }
  }

  private static double sum(MBeanServerConnection broker, String pattern, String attribute) throws Exception {
    Set<ObjectName> names = broker.queryNames(new ObjectName(pattern), null);
    double total = 0;
    for (ObjectName name : names) {
      if (broker.getMBeanInfo(name).getAttributes().length > 0) {
        try {
          total += ((Number) broker.getAttribute(name, attribute)).doubleValue();
        } catch (javax.management.AttributeNotFoundException absent) {
          continue; // a bean of the same type with other attributes
        }
      }
    }
    return total;
  }

  private static long collecting(MBeanServerConnection broker) throws Exception {
    long total = 0;
    for (var each : ManagementFactory.getPlatformMXBeans(broker, GarbageCollectorMXBean.class)) {
      total += each.getCollectionTime();
    }
    return total;
  }
}
