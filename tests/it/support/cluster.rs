//! Three nats-servers that are one cluster.

use std::time::Duration;

use serde_json::{Value, json};

use super::process::free_port;
use super::{eventually, nats};

/// Longer than an election takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The cluster. Each node keeps its ports and its store over restarts.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<nats::Server>,
    /// Looks at streams through whichever node is there.
    look: async_nats::Client,
}

impl Cluster {
    /// Starts it; JetStream may still be looking for its leader.
    pub async fn start() -> Self {
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let routes = ports
            .iter()
            .map(|port| format!("\"nats://127.0.0.1:{port}\""));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let mut nodes = Vec::new();
        for port in &ports {
            let snippet = format!(
                "cluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}"
            );
            nodes.push(nats::Server::start_with(&snippet).await);
        }
        let addresses = nodes.iter().map(|node| node.url().parse().unwrap());
        let addresses: Vec<async_nats::ServerAddr> = addresses.collect();
        let look = async_nats::ConnectOptions::new()
            .retry_on_initial_connect()
            .request_timeout(Some(Duration::from_secs(2)))
            .connect(addresses)
            .await
            .unwrap();
        Self { nodes, look }
    }

    /// All nodes, comma separated.
    pub fn urls(&self) -> String {
        urls(&self.nodes)
    }

    /// One of its nodes.
    pub fn node(&mut self, index: usize) -> &mut nats::Server {
        &mut self.nodes[index]
    }

    /// One request to the API, tried again until somebody answers.
    async fn ask(&self, what: &str, body: Value) -> Value {
        let what = format!("$JS.API.{what}");
        eventually(LONG, &what, || async {
            let asked = self.look.request(what.clone(), body.to_string().into());
            let answer = asked.await.map_err(|error| error.to_string())?;
            let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
            match answer["error"].is_null() {
                true => Ok(answer),
                false => Err(answer.to_string()),
            }
        })
        .await
    }

    /// Creates a stream with these additions to its configuration, on all three nodes.
    pub async fn create_stream(&self, name: &str, config: Value) {
        let mut all = json!({"name": name, "num_replicas": 3, "storage": "file"});
        let fields = all.as_object_mut().unwrap();
        fields.extend(config.as_object().unwrap().clone());
        self.ask(&format!("STREAM.CREATE.{name}"), all).await;
    }

    async fn info(&self, stream: &str) -> Value {
        self.ask(&format!("STREAM.INFO.{stream}"), json!({})).await
    }

    /// Messages in the stream.
    pub async fn count(&self, stream: &str) -> u64 {
        let info = self.info(stream).await;
        info["state"]["messages"].as_u64().unwrap()
    }

    /// The stream's leader hands over to another node.
    pub async fn step_down(&self, stream: &str) {
        let what = format!("STREAM.LEADER.STEPDOWN.{stream}");
        self.ask(&what, json!({})).await;
    }

    /// Waits until the stream has a leader and two followers that have all of it.
    pub async fn healthy(&self, stream: &str) {
        eventually(LONG, "the cluster is whole", || async {
            let info = self.info(stream).await;
            let followers = info["cluster"]["replicas"].as_array();
            let current = followers.map(|all| {
                let current = |peer: &&Value| peer["current"] == true && peer["offline"].is_null();
                all.iter().filter(current).count()
            });
            match current {
                Some(2) => Ok(()),
                _ => Err(info["cluster"].to_string()),
            }
        })
        .await;
    }

    /// Which node leads the stream.
    pub async fn leader(&self, stream: &str) -> usize {
        eventually(LONG, "the stream has a leader", || async {
            let info = self.info(stream).await;
            let leader = info["cluster"]["leader"].as_str().unwrap_or_default();
            let is_it = |node: &nats::Server| node.name() == leader;
            let found = self.nodes.iter().position(is_it);
            found.ok_or_else(|| info["cluster"].to_string())
        })
        .await
    }
}

fn urls(nodes: &[nats::Server]) -> String {
    let urls: Vec<String> = nodes.iter().map(nats::Server::url).collect();
    urls.join(",")
}
