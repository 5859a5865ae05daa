//! Heads and trailers that wait to be read: no flow-control window limits them, so their memory has a limit of its own.

use testing::http2::{
    DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, Http2, RST_STREAM, block, frame,
};
use testing::{Scripted, Server};

/// A field of one byte as a new entry of the dynamic table (RFC 7541 section 6.2.1), and references to it.
fn crumbs(name: &str, count: usize) -> Vec<u8> {
    let mut fields = vec![0x40, u8::try_from(name.len()).unwrap()];
    fields.extend_from_slice(name.as_bytes());
    fields.extend_from_slice(&[1, b'a']);
    fields.resize(fields.len() + count, 0xbe);
    fields
}

fn start(backend: &Scripted) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ))
}

#[test]
fn trailers_that_come_faster_than_they_are_read_end_their_requests_and_no_other() {
    let backend = Scripted::answering("served");
    let server = start(&backend);
    let mut client = Http2::connect(&server.address("web"));
    let head = block(&[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "test")]);
    let streams = (0..99).map(|number| 2 * number + 1);
    let mut bytes: Vec<u8> =
        streams.clone().flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &head)).collect();
    // 256 KiB in memory are reached after three of them; all are two reads of the server.
    let trailers = crumbs("x", 900);
    bytes.extend(streams.flat_map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers)));
    assert!(client.send_raw(&bytes));
    let reset = client.wait_for("a request is ended", |frame| frame.kind == RST_STREAM);
    assert_eq!(reset.code(), ENHANCE_YOUR_CALM);
    let mut other = Http2::connect(&server.address("web"));
    other.get(1, "/");
    assert_eq!(other.response(1).0, Some(200));
}

/// All heads arrive in a few reads. Decoded at once they would cost 5 MiB; each is accepted before the next is decoded.
#[test]
fn heads_that_come_faster_than_they_are_accepted_are_decoded_one_by_one_and_all_are_served() {
    let backend = Scripted::answering("served");
    let server = start(&backend);
    let mut client = Http2::connect(&server.address("web"));
    let mut head = block(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "test")]);
    head.extend(crumbs("cookie", 400));
    let flags = END_HEADERS | END_STREAM;
    let bytes: Vec<u8> = (0..99).flat_map(|number| frame(HEADERS, flags, 2 * number + 1, &head)).collect();
    assert!(client.send_raw(&bytes));
    for served in 0..99 {
        let end = client.wait_for("the end of a response", |frame| {
            assert_ne!(frame.kind, RST_STREAM, "after {served} responses: {frame:?}");
            frame.kind == DATA && frame.flags & END_STREAM != 0
        });
        assert_eq!(end.payload, b"served");
    }
}
