import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs one mqadmin command for each line of its input, words divided by tabs; answers with what it printed and a line `#end`,
 * or ends as the command did. */
public class Admin {
    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setErr(new PrintStream(new ByteArrayOutputStream(), true));
        MQAdminStartup.main0(new String[] {"help", "topicList"}, null); // what a first call prints of logging goes before the first answer
        ByteArrayOutputStream[] current = {new ByteArrayOutputStream()};
        Runtime.getRuntime().addShutdownHook(new Thread(() -> { // some commands end the process, with words
            out.println(current[0].toString().stripTrailing());
            out.flush();
        }));
        out.println("#ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            ByteArrayOutputStream said = current[0] = new ByteArrayOutputStream();
            PrintStream p = new PrintStream(said, true);
            System.setOut(p);
            System.setErr(p);
            MQAdminStartup.main0(line.split("\t"), null);
            p.flush();
            out.println(said.toString().stripTrailing());
            out.println("#end");
            out.flush();
        }
        current[0] = new ByteArrayOutputStream();
    }
}
