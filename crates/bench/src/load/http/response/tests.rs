use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;
use tokio::runtime::Builder;

use super::*;

/// A stream that returns these bytes, at most `step` per read, then its end.
struct Pieces<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.bytes.len().min(self.step).min(buffer.remaining());
        buffer.put_slice(&self.bytes[..count]);
        self.bytes = &self.bytes[count..];
        Poll::Ready(Ok(()))
    }
}

fn received(text: &str, step: usize) -> io::Result<(usize, After)> {
    let mut stream = Pieces { bytes: text.as_bytes(), step };
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(receive(&mut stream, &mut [0; 256]))
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n";

#[test]
fn whole_responses_of_every_framing_are_read_however_they_are_cut() {
    let long = "x".repeat(1000);
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(), After::Open),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(), After::Open),
        ("HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nab".to_owned(), After::Closed),
        (format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{long}"), After::Open),
        (format!("HTTP/1.1 200 OK\r\n\r\n{long}"), After::Closed),
        ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), After::Closed),
        (format!("{CHUNKED}0\r\n\r\n"), After::Open),
        (format!("{CHUNKED}5\r\nhello\r\n1;a=\"b\"\r\n!\r\n0\r\n\r\n"), After::Open),
        (format!("{CHUNKED}3E8\r\n{long}\r\n03e8 \r\n{long}\r\n00\r\nA: b\r\nC: d\r\n\r\n"), After::Open),
    ];
    for (text, after) in &cases {
        for step in [1, 2, 7, 256] {
            assert_eq!(received(text, step).unwrap(), (text.len(), *after), "{step}: {text}");
        }
    }
}

#[test]
fn a_body_that_is_cut_short_or_goes_on_is_an_error() {
    let chunked = format!("{CHUNKED}5\r\nhello\r\n0\r\nA: b\r\n\r\n");
    for length in CHUNKED.len()..chunked.len() {
        let error = received(&chunked[..length], 256).unwrap_err();
        assert_eq!(error.to_string(), "the body is cut short", "{length}");
    }
    for text in [&chunked, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"] {
        let error = received(&format!("{text}H"), 256).unwrap_err();
        assert_eq!(error.to_string(), "more bytes than the response has", "{text}");
    }
    let error = received("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", 256).unwrap_err();
    assert!(error.to_string() == "the body is cut short" && !is_unused(&error), "{error}");
}

#[test]
fn only_a_connection_closed_before_any_answer_counts_as_unused() {
    assert!(is_unused(&received("", 1).unwrap_err()));
    assert!(!is_unused(&received("HTTP/1.1 200", 1).unwrap_err()));
}

#[test]
fn a_head_longer_than_the_buffer_is_an_error() {
    let error = received(&format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(500)), 256).unwrap_err();
    assert_eq!(error.to_string(), "the head is longer than the buffer");
}

#[test]
fn chunks_that_are_none_are_an_error() {
    for wrong in
        ["\r\n", "g\r\n", ";\r\n", "1\n", "1;\n", "1\r\nab", "0\r\n\n", "0\r\nA\n", "ffffffffffffffff0\r\n"]
    {
        let error = received(&format!("{CHUNKED}{wrong}"), 256).unwrap_err();
        assert!(error.to_string().contains("chunk"), "{wrong:?}: {error}");
    }
}

#[test]
fn lengths_that_contradict_or_are_none_are_an_error() {
    for wrong in [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: gzip, chunked",
        "Content-Length: +5",
        "Content-Length: ",
        "Content-Length: 5 5",
        "Content-Length: 99999999999999999999",
    ] {
        received(&format!("HTTP/1.1 200 OK\r\n{wrong}\r\n\r\nhello"), 256).expect_err(wrong);
    }
    let largest = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nhello", u64::MAX);
    assert_eq!(received(&largest, 256).unwrap_err().to_string(), "the body is cut short");
}

#[test]
fn a_connection_stays_as_its_version_and_its_options_say() {
    let cases = [
        ("HTTP/1.1 200 OK\r\n", After::Open),
        ("HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\n", After::Closed),
        ("HTTP/1.0 200 OK\r\n", After::Closed),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", After::Open),
    ];
    for (head, after) in cases {
        let text = format!("{head}Content-Length: 0\r\n\r\n");
        assert_eq!(received(&text, 256).unwrap().1, after, "{head}");
    }
}

#[test]
fn anything_but_a_200_is_an_error_that_says_what_it_was() {
    let cases = [
        ("HTTP/1.1 503 Busy\r\n\r\n", "status 503"),
        ("SSH-2.0-x\r\n", "it starts with \"SSH-2.0-x\\r\\n\""),
        ("\x15\x03\x03\x00\x02\x02\x46", "not an HTTP/1 response"),
        ("HTTP/2 200\r\n\r\n", "not an HTTP/1 response"),
    ];
    for (text, expected) in cases {
        let error = received(text, 256).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
