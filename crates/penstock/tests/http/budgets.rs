//! Limits of small parts of messages have keys: trailers, interim responses, heads that wait. And what a route leaves to its
//! backend.

use testing::client::Complete;
use testing::http2::{
    DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, Http2, RST_STREAM, block, frame,
};
use testing::{Scripted, Server};

use crate::backend_http2;
use crate::held_fields::crumbs;

fn front(backend: &str, listener: &str, pool: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [\"{backend}\"]\nretries = 0\npassive = \"off\"\n{pool}\n"
    ))
}

fn trailers(lines: usize, size: usize) -> String {
    (0..lines).map(|line| format!("X-{line}: {}\r\n", "v".repeat(size))).collect()
}

#[test]
fn trailers_of_both_sides_have_limits_with_keys() {
    // The backend sends back as many trailers as the path says.
    let backend = Scripted::start(|talk| {
        while let Some(request) = talk.request() {
            let (lines, size) = request.target[1..].split_once('/').unwrap();
            let back = trailers(lines.parse().unwrap(), size.parse().unwrap());
            talk.send(format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{back}\r\n"
            ));
        }
    });
    let more = "limits = { trailers = \"16KiB\", trailer-fields = 40 }";
    let (usual, raised) = (front(&backend.address, "", ""), front(&backend.address, more, ""));
    // Lines, bytes of each value, and whether the usual and the raised limits let them pass.
    for (lines, size, passes) in
        [(32, 10, [true, true]), (33, 10, [false, true]), (41, 10, [false, false]), (9, 1000, [false, true])]
    {
        for (server, passes) in [&usual, &raised].into_iter().zip(passes) {
            let mut client = server.client("web");
            let answer = client.get(&format!("/{lines}/{size}"), &[("TE", "trailers"), ("Connection", "TE")]);
            if passes {
                let seen = (answer.status, answer.complete, answer.trailers.len());
                assert_eq!(seen, (200, Complete::Yes, lines), "{lines} x {size}");
            } else {
                // 502 if the head was not yet sent.
                let is_cut = answer.status == 502 || answer.complete == Complete::Truncated;
                assert!(is_cut && answer.trailers.is_empty(), "{lines} x {size}: {answer:?}");
            }
            let mut client = server.client("web");
            client.send(
                "POST /0/0 HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
            );
            client.send(format!("{}\r\n", trailers(lines, size)));
            let status = client.response().status;
            assert_eq!(status == 200, passes, "{lines} x {size}: {status}");
        }
    }
}

#[test]
fn the_number_of_interim_responses_has_a_key() {
    let backend = Scripted::start(|talk| {
        while let Some(request) = talk.request() {
            let count = request.target[1..].parse().unwrap();
            talk.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".repeat(count));
            if talk.answer(200, &[], b"served").is_err() {
                return;
            }
        }
    });
    for (limits, most) in [("", 32), ("limits = { interim = 2 }", 2), ("limits = { interim = 50 }", 50)] {
        let server = front(&backend.address, limits, "");
        for (count, status) in [(most, 200), (most + 1, 502)] {
            let mut client = server.client("web");
            client.send(format!("GET /{count} HTTP/1.1\r\nHost: test\r\n\r\n"));
            let answers = std::iter::repeat_with(|| client.response().status);
            let answers: Vec<u16> = answers.take(most + 1).collect();
            assert!(answers[..most].iter().all(|status| *status == 103), "{limits}: {answers:?}");
            assert_eq!(answers[most], status, "{limits}");
        }
    }
}

#[test]
fn the_size_of_interim_responses_over_http2_has_a_key() {
    let backend = backend_http2::backend(&[], |talk, _, stream| {
        let interim = frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "103"), ("link", "</x>")]));
        talk.send(interim.repeat(4));
        talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
        talk.send(frame(DATA, END_STREAM, stream, b"served"));
    });
    // Each counts as 2 KiB.
    for (http2, status) in [("\"on\"", 200), ("{ interim = \"8KiB\" }", 200), ("{ interim = \"7KiB\" }", 502)]
    {
        let server = front(&backend.address, "", &format!("http2 = {http2}"));
        let mut client = server.client("web");
        client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n");
        let mut answers = std::iter::repeat_with(|| client.response().status);
        assert_eq!(answers.find(|status| *status != 103), Some(status), "{http2}");
    }
}

#[test]
fn what_waits_of_heads_and_trailers_has_a_key() {
    const STREAMS: u32 = 8;
    let backend = Scripted::answering("served");
    let head = block(&[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "test")]);
    let streams = (0..STREAMS).map(|number| 2 * number + 1);
    let mut bytes: Vec<u8> =
        streams.clone().flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &head)).collect();
    // 115 KiB in memory each, and less than 8 KiB on the way: one read of the server.
    let trailers = crumbs("x", 900);
    bytes.extend(streams.flat_map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers)));
    let calm = |http2: &str| {
        let server =
            front(&backend.address, &format!("http2 = {http2}\nlimits = {{ trailer-fields = 1000 }}"), "");
        let mut client = Http2::connect(&server.address("web"));
        assert!(client.send_raw(&bytes));
        let mut calm = 0;
        for _ in 0..STREAMS {
            let end = client.wait_for("the end of a request", |frame| {
                frame.kind == RST_STREAM
                    || (frame.stream != 0 && frame.kind == DATA && frame.flags & END_STREAM != 0)
            });
            if end.kind == RST_STREAM {
                assert_eq!(end.code(), ENHANCE_YOUR_CALM);
                calm += 1;
            }
        }
        calm
    };
    assert_eq!(calm("{ held-heads = \"8MiB\" }"), 0);
    assert!(calm("\"on\"") > 0);
}

/// The reference says so, and why: a backend may see it otherwise.
#[test]
fn a_route_does_not_lead_where_a_parameter_of_the_path_begins() {
    let (admin, public) = (Scripted::answering("admin"), Scripted::answering("public"));
    let routes = format!(
        "[[listener.web.route]]\npath = \"/admin\"\npool = \"admin\"\n[pool.admin]\nbackends = [\"{}\"]",
        admin.address
    );
    let server = front(&public.address, &routes, "");
    let mut client = server.client("web");
    for (target, wanted) in [
        ("/admin", "admin"),
        ("/admin/", "admin"),
        ("/admin/x;y", "admin"),
        ("/admin?x", "admin"),
        ("/admin;x", "public"),
        ("/admin;x/y", "public"),
        ("/admin;", "public"),
        ("/adminx", "public"),
    ] {
        assert_eq!(client.get(target, &[]).text(), wanted, "{target}");
        let mut second = Http2::connect(&server.address("web"));
        second.get(1, target);
        assert_eq!(second.response(1), (Some(200), wanted.as_bytes().to_vec()), "{target} over HTTP/2");
    }
}
