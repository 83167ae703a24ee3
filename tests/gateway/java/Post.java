import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** The platform's own client, as it is: on plain HTTP it asks with each request whether the server speaks HTTP/2. */
public class Post {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        HttpRequest.BodyPublisher body = HttpRequest.BodyPublishers.ofString(arguments[1]);
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("content-type", "application/json").POST(body).build();
        for (int i = 0; i < 2; i++) {
            HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.version() + " " + answer.body());
        }
    }
}
