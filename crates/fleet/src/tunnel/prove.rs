//! Checks the service at the end of a forward. `hosts/src/tunnel/answer.rs` decides what counts as an answer.

use std::time::Duration;

use hosts::tunnel::answer::{AnswerState, End, MOST, judge, question};
use hosts::tunnel::plan::{Check, Forward, Way};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::awake::within;
use super::engine::{Duplex, Link, said};
use super::relay::dial;

/// Time limit for the answer of a service.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// `ssh -L` accepts a connection even if the service refuses it, and closes the connection a moment later.
const KEPT: Duration = Duration::from_millis(400);

/// Checks a service. Returns its answer, or why the check failed.
pub(crate) async fn ask(link: &dyn Link, forward: &Forward) -> Result<String, String> {
    if forward.check == Check::None {
        return Ok(String::new());
    }
    // The limit is for the host's connection to the service and for the answer together.
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
            AnswerState::Answers(what) => return Ok(what),
            AnswerState::Wrong(why) => return Err(why),
            AnswerState::More => {}
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
