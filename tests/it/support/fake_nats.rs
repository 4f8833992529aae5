//! A scripted NATS server with one stream, for answers that real servers give once in a thousand hours.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Accepts one connection after the other; acknowledges every publish unless told otherwise.
pub struct Server {
    port: u16,
    shared: Arc<Shared>,
}

/// A message that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its subject.
    pub subject: String,
    /// Where the answer goes.
    pub reply: String,
    /// Its header block, as it was sent.
    pub headers: String,
    /// Its body.
    pub payload: String,
}

type Rule = Box<dyn FnMut(&Published) -> Option<Vec<String>> + Send>;

struct Shared {
    /// What each of the next publishes is answered with; an empty list is silence.
    script: Mutex<VecDeque<Vec<&'static str>>>,
    /// Asked before the script.
    rule: Mutex<Option<Rule>>,
    published: Mutex<Vec<Published>>,
    reading: watch::Sender<bool>,
    /// Connections that have ended.
    ended: watch::Sender<usize>,
    /// Its stream allows fast-ingest batches.
    batches: bool,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(false).await
    }

    /// With a stream that allows fast-ingest batches.
    pub async fn start_with_batches() -> Self {
        Self::start_with(true).await
    }

    async fn start_with(batches: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            script: Mutex::default(),
            rule: Mutex::default(),
            published: Mutex::default(),
            reading: watch::Sender::new(true),
            ended: watch::Sender::new(0),
            batches,
        });
        let server = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = server.serve(stream).await;
                server.ended.send_modify(|ended| *ended += 1);
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The next publish is answered with these bodies, in this order.
    pub fn answer(&self, bodies: &[&'static str]) {
        let mut script = self.shared.script.lock().unwrap();
        script.push_back(bodies.to_vec());
    }

    /// Publishes for which `rule` has an answer get it, an empty list being silence; the others are answered as
    /// usual.
    pub fn on(&self, rule: impl FnMut(&Published) -> Option<Vec<String>> + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Some(Box::new(rule));
    }

    /// Leaves everything in the socket until [`Self::read_to_the_end`].
    pub fn stop_reading(&self) {
        self.shared.reading.send_replace(false);
    }

    /// Reads until the first connection has ended; what was published.
    pub async fn read_to_the_end(&self) -> Vec<Published> {
        self.shared.reading.send_replace(true);
        let mut ended = self.shared.ended.subscribe();
        ended.wait_for(|ended| *ended > 0).await.unwrap();
        self.published()
    }

    pub fn published(&self) -> Vec<Published> {
        self.shared.published.lock().unwrap().clone()
    }
}

impl Shared {
    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        write
            .write_all(
                b"INFO {\"server_id\":\"F\",\"server_name\":\"fake\",\"version\":\"2.15.0\",\"go\":\"\",\
                \"host\":\"\",\"port\":0,\"headers\":true,\"proto\":1,\"max_payload\":1048576}\r\n",
            )
            .await?;
        let mut reading = self.reading.subscribe();
        loop {
            let _ = reading.wait_for(|reading| *reading).await;
            let mut line = String::new();
            tokio::select! {
                length = read.read_line(&mut line) => if length? == 0 { return Ok(()) },
                _ = reading.changed() => if !*reading.borrow() { continue },
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.first().copied() {
                Some("PING") => write.write_all(b"PONG\r\n").await?,
                Some(verb @ ("PUB" | "HPUB")) => {
                    let size: usize = words.last().unwrap().parse().unwrap();
                    let mut body = vec![0; size + 2];
                    read.read_exact(&mut body).await?;
                    body.truncate(size);
                    // HPUB subject reply header-bytes all-bytes; PUB has no headers.
                    let head = match verb {
                        "HPUB" => words[words.len() - 2].parse().unwrap(),
                        _ => 0,
                    };
                    let payload = body.split_off(head);
                    let message = Published {
                        subject: words[1].to_owned(),
                        reply: words[2].to_owned(),
                        headers: String::from_utf8_lossy(&body).into_owned(),
                        payload: String::from_utf8_lossy(&payload).into_owned(),
                    };
                    for answer in self.answers(message) {
                        // The inbox is the only subscription of a session, so its id is known.
                        let head = format!("MSG {} 1 {}\r\n", words[2], answer.len());
                        write.write_all(head.as_bytes()).await?;
                        write.write_all(answer.as_bytes()).await?;
                        write.write_all(b"\r\n").await?;
                    }
                }
                _ => {}
            }
        }
    }

    fn answers(&self, message: Published) -> Vec<String> {
        if message.subject.starts_with("$JS.API.STREAM.INFO.") {
            let batches = self.batches;
            return vec![format!(
                r#"{{"config":{{"name":"EVT","duplicate_window":120000000000,"allow_batched":{batches}}}}}"#
            )];
        }
        let ruled = match &mut *self.rule.lock().unwrap() {
            Some(rule) => rule(&message),
            None => None,
        };
        let mut published = self.published.lock().unwrap();
        published.push(message);
        let usual = || format!(r#"{{"stream":"EVT","seq":{}}}"#, published.len());
        let script = || self.script.lock().unwrap().pop_front();
        match ruled {
            Some(answers) => answers,
            None => match script() {
                Some(bodies) => bodies.into_iter().map(str::to_owned).collect(),
                None => vec![usual()],
            },
        }
    }
}
