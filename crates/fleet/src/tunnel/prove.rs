//! Asks the service at the end of a forward whether it works. What counts as an answer is in `logic/src/tunnel/answer.rs`.

use std::time::Duration;

use logic::tunnel::answer::{End, Judgement, MOST, judge, question};
use logic::tunnel::plan::{Check, Forward, Way};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::awake::within;
use super::engine::{Duplex, Link, said};
use super::relay::dial;

/// Longest time for a service to answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// With `ssh -L` a connection opens even when nothing is behind it, and is closed a moment later.
const KEPT: Duration = Duration::from_millis(400);

/// What the service said, or why it does not count as working.
pub(crate) async fn ask(link: &dyn Link, forward: &Forward) -> Result<String, String> {
    if forward.check == Check::None {
        return Ok(String::new());
    }
    // A host may take as long to connect as the service to answer.
    let asked = within(LIMIT, async {
        let stream = match &forward.way {
            Way::Local { connect, .. } => link.open(connect).await.map_err(|why| said(&why)),
            Way::Remote { connect, .. } => {
                dial(connect).await.map_err(|error| format!("cannot connect to {connect}: {error}"))
            }
            Way::Dynamic { .. } => return Ok(String::new()),
        };
        converse(stream?, forward).await
    });
    asked.await.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())))
}

async fn converse(mut stream: Box<dyn Duplex>, forward: &Forward) -> Result<String, String> {
    let Some(connect) = forward.way.connect() else { return Ok(String::new()) };
    let asked = question(&forward.check, connect);
    if !asked.is_empty() {
        stream.write_all(&asked).await.map_err(|error| format!("cannot ask: {error}"))?;
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    let mut end = End::Open;
    loop {
        match judge(&forward.check, &answer, end) {
            Judgement::Answers(what) => return Ok(what),
            Judgement::Wrong(why) => return Err(why),
            Judgement::More => {}
        }
        let room = (MOST - answer.len().min(MOST)).clamp(1, buffer.len());
        let read = stream.read(&mut buffer[..room]);
        let read = match forward.check {
            Check::Tcp => match timeout(KEPT, read).await {
                Ok(read) => read,
                Err(_) => return Ok("accepts connections".to_owned()),
            },
            _ => read.await,
        };
        match read {
            Ok(0) => end = End::Closed,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) => return Err(format!("the connection broke: {error}")),
        }
    }
}
