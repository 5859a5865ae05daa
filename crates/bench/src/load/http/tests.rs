use std::cell::Cell;

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use super::*;
use crate::load::gauge::{Tally, Window};
use crate::load::until_counted;

/// A server that answers every request with these bytes, and closes after a response with `Connection: close`.
struct Server {
    response: &'static str,
    /// Number of a request, counted over all connections, and the delay of its response.
    slow: Option<(u32, Duration)>,
}

impl Server {
    async fn run(self, listener: TcpListener) -> io::Result<()> {
        let (server, number) = (Rc::new(self), Rc::new(Cell::new(0)));
        loop {
            let (mut stream, _) = listener.accept().await?;
            let (server, number) = (server.clone(), number.clone());
            task::spawn_local(async move {
                let mut seen = Vec::new();
                while stream.read_buf(&mut seen).await? > 0 {
                    if !seen.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    seen.clear();
                    number.set(number.get() + 1);
                    if let Some((slow, time)) = server.slow
                        && slow == number.get()
                    {
                        tokio::time::sleep(time).await;
                    }
                    stream.write_all(server.response.as_bytes()).await?;
                    if server.response.contains("close") {
                        break;
                    }
                }
                io::Result::Ok(())
            });
        }
    }
}

fn run(server: Server, reuse: Reuse, pace: Pace, duration: Duration) -> io::Result<Tally> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        task::spawn_local(server.run(listener));
        let gauge = Gauge::new(Window { warm_up: Duration::ZERO, duration }, Vec::new());
        let load = Load { server: address, path: "/".to_owned(), connections: 1, reuse, pace };
        load.start(&gauge).await?;
        gauge.run().await;
        Ok(gauge.tally())
    })
}

#[test]
fn responses_of_every_framing_count_with_all_their_bytes() {
    let responses = [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi",
    ];
    for response in responses {
        for reuse in [Reuse::Keep, Reuse::Never] {
            let tally = until_counted(|window| {
                run(Server { response, slow: None }, reuse, Pace::Closed, window).unwrap()
            });
            assert_eq!(tally.first_error, None, "{reuse:?} {response}");
            assert!(tally.units > 0, "{reuse:?} {response}");
            assert_eq!(tally.bytes, tally.units * response.len() as u64, "{reuse:?} {response}");
        }
    }
}

#[test]
fn an_open_loop_charges_a_stall_to_every_request_that_was_meant_for_it() {
    let stall = Duration::from_millis(200);
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let server = Server { response, slow: Some((5, stall)) };
    let tally = run(server, Reuse::Keep, Pace::Open(1000.0), Duration::from_secs(1)).unwrap();
    let slow = tally.latency.points().iter().filter(|(time, _)| *time >= 100_000_000);
    let slow: u64 = slow.map(|(_, count)| count).sum();
    // About 100 requests were due in the first half of the delay. A clock started at the sending would show one.
    assert!(slow >= 90, "{slow}");
}

#[test]
fn something_that_is_no_web_server_ends_the_load_before_it_begins() {
    let server = Server { response: "SSH-2.0-OpenSSH\r\n", slow: None };
    let error = run(server, Reuse::Keep, Pace::Closed, Duration::from_millis(50)).unwrap_err();
    assert!(error.to_string().contains("starts with \"SSH-2.0-OpenSSH"), "{error}");
}
