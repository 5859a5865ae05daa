//! The end of a connection after our last word.

use std::cell::Cell;
use std::time::Duration;

use crate::stream::Stream;

/// After our last word we read on for so long and so much, so that the client gets it before a reset could destroy it.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

const LINGER_BYTES: usize = 256 * 1024;

/// Ends our direction, then reads what the client still sends, within bounds: closing at once would reset the connection,
/// and the reset would overtake our last answer.
pub(crate) async fn linger(stream: &Stream) {
    let read = Cell::new(0);
    let _ = tokio::time::timeout(LINGER, async {
        stream.shutdown().await?;
        while read.get() < LINGER_BYTES {
            let mut discarded = Vec::new();
            match stream.fill(&mut discarded).await? {
                0 => break,
                count => read.set(read.get() + count),
            }
        }
        std::io::Result::Ok(())
    })
    .await;
}
