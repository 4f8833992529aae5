//! A faulty network: a TCP proxy on a port of its own whose behaviour a test switches while it runs.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::door::Door;
use self::pace::Pace;

mod door;
mod pace;

/// What happens to connections, open ones and new ones alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Bytes pass both ways.
    Pass,
    /// Open connections are reset (RST), new ones as soon as they are accepted.
    Cut,
    /// Connections are accepted and stay open, bytes are swallowed both ways. A connection that lost
    /// bytes this way is reset when another mode is set.
    Hole,
    /// Bytes from the server are swallowed, bytes to it pass: requests are carried out, answers never
    /// arrive. Reset afterwards like `Hole`.
    Mute,
    /// Bytes to the server are swallowed, bytes from it pass: requests are never heard. Reset afterwards like
    /// `Hole`.
    Deaf,
    /// Bytes are kept back both ways and arrive late, when another mode is set: a network that heals.
    Hold,
    /// Every byte arrives this much later, in both directions, at full throughput.
    Lag(Duration),
    /// So many bytes a second pass each way, of each connection.
    Trickle(u32),
    /// Everything passes, cut into slices of one to so many bytes. The receiver gets the time to read before the next
    /// one comes, after some of them surely.
    Slice(usize),
    /// Nothing listens: new connections are refused. Bytes of open ones pass both ways.
    Refuse,
}

impl Mode {
    fn swallows(self, direction: Direction) -> bool {
        match self {
            Self::Hole => true,
            Self::Mute => direction == Direction::ToClient,
            Self::Deaf => direction == Direction::ToServer,
            Self::Pass
            | Self::Cut
            | Self::Hold
            | Self::Lag(_)
            | Self::Trickle(_)
            | Self::Slice(_)
            | Self::Refuse => false,
        }
    }
}

/// The proxy. Dropping it resets its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    limit: Arc<Mutex<Option<Limit>>>,
    server: Arc<Mutex<String>>,
    accepted: Arc<AtomicUsize>,
    /// Open connections that the mode concerns.
    concerned: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and leads to `server`, for instance `127.0.0.1:5432`. Starts with `Pass`.
    pub async fn to(server: impl Into<String>) -> Self {
        Self::new(server.into(), None).await
    }

    /// As [`Self::to`], but only connections whose client has said `word` are troubled, from then on; everything
    /// else always passes.
    pub async fn for_those_who_say(word: &'static str, server: impl Into<String>) -> Self {
        Self::new(server.into(), Some(word)).await
    }

    async fn new(server: String, word: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, watched) = watch::channel(Mode::Pass);
        let mut door = Door::new(listener, watched.clone());
        let limit = Arc::new(Mutex::default());
        let (switch, shared) = (mode.clone(), Arc::clone(&limit));
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let concerned = Arc::new(AtomicUsize::new(0));
        let open = Arc::clone(&concerned);
        let server = Arc::new(Mutex::new(server));
        let name = Arc::clone(&server);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                let Some(client) = door.accept().await else {
                    continue;
                };
                count.fetch_add(1, Ordering::Relaxed);
                let trouble = Trouble {
                    switch: switch.clone(),
                    limit: Arc::clone(&shared),
                };
                let chosen = Chosen::new(word, Arc::clone(&open), trouble);
                let server = name.lock().unwrap().clone();
                connections.spawn(carry(client, server, watched.clone(), chosen));
            }
        });
        Self {
            port,
            mode,
            limit,
            server,
            accepted,
            concerned,
            task,
        }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Leads new connections to another server; open ones stay where they are: a name that was moved.
    pub fn lead_to(&self, server: impl Into<String>) {
        *self.server.lock().unwrap() = server.into();
    }

    /// Switches, for open connections too, and forgets [`Self::set_after`].
    pub fn set(&self, mode: Mode) {
        *self.limit.lock().unwrap() = None;
        self.mode.send_replace(mode);
    }

    /// Switches to `then` when so many bytes more have passed in this direction, between two bytes.
    pub fn set_after(&self, bytes: usize, direction: Direction, then: Mode) {
        *self.limit.lock().unwrap() = Some(Limit {
            direction,
            left: bytes,
            then,
        });
    }

    /// Resets every open connection once; new ones pass.
    pub async fn cut_once(&self) {
        self.cut_then(Mode::Pass).await;
    }

    /// Resets every open connection once, and switches to `then`.
    pub async fn cut_then(&self, then: Mode) {
        self.set(Mode::Cut);
        // Each connection looks at the mode before its next byte; give all of them the chance to.
        while self.concerned.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.set(then);
    }

    /// Connections accepted so far, whatever became of them.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends a connection by RST.
struct Reset;

async fn carry(
    mut client: TcpStream,
    server: String,
    mut mode: watch::Receiver<Mode>,
    chosen: Arc<Chosen>,
) {
    let _ = client.set_nodelay(true);
    if chosen.mode(&mut mode) == Mode::Cut {
        let _ = client.set_zero_linger();
        return;
    }
    let Ok(mut server) = TcpStream::connect(server).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = server.set_nodelay(true);
    // Until the end is known to be an orderly one, a drop (an aborted task too) is a reset.
    let _ = client.set_zero_linger();
    let _ = server.set_zero_linger();
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let there = pump(
        from_client,
        to_server,
        Direction::ToServer,
        mode.clone(),
        Arc::clone(&chosen),
    );
    let back = pump(from_server, to_client, Direction::ToClient, mode, chosen);
    if tokio::try_join!(there, back).is_ok() {
        // Closed in order both ways: no reset, which could overtake the last bytes.
        // Deprecated since a linger time above zero blocks; this one takes it away.
        #[allow(deprecated)]
        let _ = (client.set_linger(None), server.set_linger(None));
    }
}

/// A change of mode that waits for its byte.
#[derive(Debug)]
struct Limit {
    direction: Direction,
    left: usize,
    then: Mode,
}

/// How a connection changes the mode for all.
struct Trouble {
    switch: watch::Sender<Mode>,
    limit: Arc<Mutex<Option<Limit>>>,
}

/// Whether the mode concerns a connection.
struct Chosen {
    trouble: Trouble,
    word: Option<&'static str>,
    said: AtomicBool,
    open: Arc<AtomicUsize>,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        if *self.said.get_mut() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Chosen {
    fn new(word: Option<&'static str>, open: Arc<AtomicUsize>, trouble: Trouble) -> Arc<Self> {
        open.fetch_add(usize::from(word.is_none()), Ordering::Relaxed);
        Arc::new(Self {
            trouble,
            word,
            said: AtomicBool::new(word.is_none()),
            open,
        })
    }

    fn mode(&self, mode: &mut watch::Receiver<Mode>) -> Mode {
        let now = *mode.borrow_and_update();
        match self.said.load(Ordering::Relaxed) {
            true => now,
            false => Mode::Pass,
        }
    }

    /// Of `n` bytes that have come, those that still pass before the mode changes, and to which.
    fn limited(&self, n: usize, direction: Direction) -> Option<(usize, Mode)> {
        let mut slot = self.trouble.limit.lock().unwrap();
        let limit = slot.as_mut().filter(|limit| limit.direction == direction)?;
        if n < limit.left {
            limit.left -= n;
            return None;
        }
        slot.take().map(|limit| (limit.left, limit.then))
    }

    /// Listens to what the client says; true when it has just said the word.
    fn hears(&self, chunk: &[u8]) -> bool {
        let Some(word) = self.word else { return false };
        let says = chunk
            .windows(word.len())
            .any(|part| part == word.as_bytes());
        let first = says && !self.said.swap(true, Ordering::Relaxed);
        self.open.fetch_add(usize::from(first), Ordering::Relaxed);
        first
    }
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    ToServer,
    /// From the server.
    ToClient,
}

/// Carries one direction until its end of file has been passed on.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    mut mode: watch::Receiver<Mode>,
    chosen: Arc<Chosen>,
) -> Result<(), Reset> {
    /// Beyond this the sender is made to wait, as a real link would; sooner when the link is slow.
    const QUEUE: usize = 4 << 20;
    const QUEUE_OF_A_TRICKLE: usize = 16 << 10;
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut queued = 0;
    let mut pace = Pace::default();
    let mut lost = false;
    let mut ended = false;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let now = chosen.mode(&mut mode);
        let swallow = now.swallows(direction);
        if now == Mode::Cut || (lost && !swallow) {
            return Err(Reset);
        }
        let hold = swallow || now == Mode::Hold;
        if ended && queue.is_empty() && !hold {
            to.shutdown().await.map_err(|_| Reset)?;
            // The other direction may go on; a cut still has to reach this connection through it.
            return Ok(());
        }
        let room = match now {
            Mode::Trickle(_) => QUEUE_OF_A_TRICKLE,
            _ => QUEUE,
        };
        let due = queue.front().map_or_else(Instant::now, |(due, _)| *due);
        let (due, most) = pace.next(now, due);
        tokio::select! {
            changed = mode.changed() => changed.map_err(|_| Reset)?,
            read = from.read(&mut buffer), if !ended && queued < room => match read {
                Ok(0) => ended = true,
                Ok(_) if swallow => lost = true,
                Ok(n) if direction == Direction::ToServer
                    && chosen.hears(&buffer[..n])
                    && (*mode.borrow() == Mode::Cut || mode.borrow().swallows(direction)) => lost = true,
                Ok(n) => {
                    if let Some((pass, then)) = chosen.limited(n, direction) {
                        for (_, chunk) in queue.drain(..) {
                            to.write_all(&chunk).await.map_err(|_| Reset)?;
                        }
                        queued = 0;
                        to.write_all(&buffer[..pass]).await.map_err(|_| Reset)?;
                        let rest = &buffer[pass..n];
                        if then == Mode::Cut || then.swallows(direction) {
                            lost = !rest.is_empty();
                        } else {
                            queue.push_back((Instant::now(), rest.to_vec()));
                            queued = rest.len();
                        }
                        chosen.trouble.switch.send_replace(then);
                        continue;
                    }
                    let lag = if let Mode::Lag(lag) = now { lag } else { Duration::ZERO };
                    queue.push_back((Instant::now() + lag, buffer[..n].to_vec()));
                    queued += n;
                }
                Err(_) if hold => ended = true,
                Err(_) => return Err(Reset),
            },
            written = write_at(&mut to, due, queue.front().map(|(_, chunk)| &chunk[..most.min(chunk.len())])),
                if !queue.is_empty() && !hold =>
            {
                let n = written.map_err(|_| Reset)?;
                queued -= n;
                pace.wrote(now, n);
                let chunk = &mut queue.front_mut().expect("the chunk just written from").1;
                chunk.drain(..n);
                if chunk.is_empty() {
                    queue.pop_front();
                }
            }
        }
    }
}

/// Writes a part of `chunk` once it is due. Dropping the future loses nothing.
async fn write_at(
    to: &mut WriteHalf<'_>,
    due: Instant,
    chunk: Option<&[u8]>,
) -> std::io::Result<usize> {
    if due > Instant::now() {
        tokio::time::sleep_until(due).await;
    }
    to.write(chunk.unwrap_or_default()).await
}
