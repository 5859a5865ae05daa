//! Finds open sessions, and ends them: `penstock ctl sessions` and `kill`. `crates/logic/src/sessions.rs` decides which
//! sessions are meant; the workers answer in parts (`crates/proxy/src/worker/sessions.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use logic::sessions::keep_largest;
use proxy::front::Front;
use proxy::listing::{Asked, EndedSession, Place, Row, Target, Whence};
use proxy::question::Question;
use sys::tcp_info::TcpInfo;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::why::Silent;

/// Time limit of one part of a worker's answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Pause between two looks, if no rates were measured before.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// Sessions that one question names at most.
const AT_ONCE: usize = 256;

/// Workers look for operators during one part of their time in so many.
const LOOKING_PART: u32 = 10;

/// Only one operator looks at a time, and not before this instant.
static TURN: Mutex<Option<Instant>> = Mutex::const_new(None);

/// Sessions that an operator asked for.
pub(crate) struct Found {
    /// In the order asked for.
    pub(crate) sessions: Vec<Session>,
    /// How many match; some may not be among the above.
    pub(crate) matched: usize,
}

pub(crate) struct Session {
    pub(crate) row: Row,
    pub(crate) client: Option<TcpInfo>,
    pub(crate) backend: Option<TcpInfo>,
}

/// What is wanted of the sessions that are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Bytes a second, even at the first look, which then takes longer; what the kernel knows of the connections.
    Full,
    /// Where they are.
    Places,
}

/// Finds sessions.
pub(crate) async fn find(front: &Front, asked: Asked, detail: Detail) -> Result<Found, Silent> {
    let asked = Arc::new(asked);
    let mut turn = TURN.lock().await;
    if let Some(at) = *turn {
        sleep_until(at).await;
    }
    let mut looked = look(front, &asked).await?;
    let mut took = looked.took;
    if detail == Detail::Full && looked.unmeasured == looked.matched && looked.matched > 0 {
        sleep(BETWEEN_LOOKS).await;
        looked = look(front, &asked).await?;
        took += looked.took;
    }
    *turn = Some(Instant::now() + took * (LOOKING_PART - 1));
    drop(turn);
    let mut tcp = HashMap::new();
    let shown = if detail == Detail::Full { &looked.rows[..] } else { &[] };
    let of_tcp = shown.iter().map(|row| row.place).filter(|place| place.socket().is_none());
    for ((worker, _), places) in by_task(of_tcp, |place| *place) {
        for places in places.chunks(AT_ONCE) {
            let ask = |answer| Question::Tcp { places: places.to_vec(), answer };
            let known = match ask_one(front, worker, ask).await {
                Err(Silent::Ending) if has_ended(front, worker) => break,
                known => known?,
            };
            for sockets in known {
                tcp.insert(sockets.place, (sockets.client, sockets.backend));
            }
        }
    }
    let sessions = looked.rows.into_iter().map(|row| {
        let (client, backend) = tcp.remove(&row.place).unwrap_or_default();
        Session { row, client, backend }
    });
    Ok(Found { sessions: sessions.collect(), matched: looked.matched })
}

/// Ends sessions. Returns those that were open, and whether a worker did not answer: its sessions may end later.
pub(crate) async fn end(
    front: &Front,
    targets: impl Iterator<Item = Target>,
) -> (Vec<EndedSession>, Result<(), Silent>) {
    let (mut killed, mut all_answered) = (Vec::new(), Ok(()));
    for ((worker, _), targets) in by_task(targets, |target| target.place) {
        for targets in targets.chunks(AT_ONCE) {
            let ask = |answer| Question::Kill { targets: targets.to_vec(), answer };
            match ask_one(front, worker, ask).await {
                Ok(rows) => killed.extend(rows),
                Err(Silent::Ending) if has_ended(front, worker) => break,
                Err(why) => {
                    all_answered = Err(why);
                    break;
                }
            }
        }
    }
    (killed, all_answered)
}

#[derive(Default)]
struct Looked {
    rows: Vec<Row>,
    matched: usize,
    unmeasured: usize,
    /// Time of the worker that took longest.
    took: Duration,
}

/// Looks at all connections once.
async fn look(front: &Front, asked: &Arc<Asked>) -> Result<Looked, Silent> {
    let mut all = Looked::default();
    for worker in 0..front.questions.len() {
        let (mut next, mut took) = (Some(Whence::START), Duration::ZERO);
        while let Some(from) = next {
            let ask = |answer| Question::Sessions { asked: asked.clone(), from, answer };
            let part = match ask_one(front, worker, ask).await {
                // A stopping process: this worker has no session left.
                Err(Silent::Ending) if has_ended(front, worker) => break,
                part => part?,
            };
            all.rows.extend(part.rows);
            keep_largest(&mut all.rows, asked.most, |row| row.key(asked.sort));
            all.matched += part.matched;
            all.unmeasured += part.unmeasured;
            took += part.took;
            next = part.next;
        }
        all.took = all.took.max(took);
    }
    Ok(all)
}

/// What is wanted of each worker, and of each of its sockets for UDP.
fn by_task<T>(
    wanted: impl Iterator<Item = T>,
    place: impl Fn(&T) -> Place,
) -> HashMap<(usize, Option<usize>), Vec<T>> {
    let mut all: HashMap<_, Vec<T>> = HashMap::new();
    for one in wanted {
        let Place { worker, .. } = place(&one);
        all.entry((worker, place(&one).socket())).or_default().push(one);
    }
    all
}

/// Whether a worker has served its last session, in a process that stops.
fn has_ended(front: &Front, worker: usize) -> bool {
    front.state.stopping.get().is_some() && front.questions.get(worker).is_none_or(mpsc::Sender::is_closed)
}

async fn ask_one<T>(
    front: &Front,
    worker: usize,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Result<T, Silent> {
    let (answer, answered) = oneshot::channel();
    let asking = async {
        let to = front.questions.get(worker).ok_or(Silent::Ending)?;
        to.send(question(answer)).await.map_err(|_| Silent::Ending)?;
        answered.await.map_err(|_| Silent::Ending)
    };
    timeout(ANSWER_TIME, asking).await.unwrap_or(Err(Silent::Busy { worker }))
}
