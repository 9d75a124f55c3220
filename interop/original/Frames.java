import com.alibaba.fastjson.JSON;
import io.openmessaging.storage.dledger.protocol.PushEntryRequest;
import io.openmessaging.storage.dledger.protocol.RequestOrResponse;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Writes frames as the original's network code does: a body goes through the class of its message.
 *
 * <p>Standard input: a line for each frame, {@code KIND CODE OPAQUE CLASS BODY}, with tabs between; KIND is request or response, CLASS one of the protocol package, BODY JSON.
 *
 * <p>Standard output: a line for each, the frame in hexadecimal.
 */
public final class Frames {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split("\t");
            int code = Integer.parseInt(f[1]);
            RemotingCommand c = f[0].equals("request") ? RemotingCommand.createRequestCommand(code, null) : RemotingCommand.createResponseCommand(code, null);
            c.setOpaque(Integer.parseInt(f[2]));
            Class<?> message = Class.forName(RequestOrResponse.class.getPackage().getName() + "." + f[3]);
            Object body = JSON.parseObject(f[4], message);
            if (body instanceof PushEntryRequest) { // counted while entries are added, and not when they are read
                Field size = PushEntryRequest.class.getDeclaredField("totalSize");
                size.setAccessible(true);
                size.setInt(body, JSON.parseObject(f[4]).getIntValue("totalSize"));
            }
            c.setBody(JSON.toJSONBytes(body));
            StringBuilder hex = new StringBuilder();
            for (ByteBuffer b = c.encode(); b.hasRemaining(); ) {
                hex.append(String.format("%02x", b.get()));
            }
            System.out.println(hex);
        }
    }
}
