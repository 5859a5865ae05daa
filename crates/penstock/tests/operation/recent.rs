//! `ctl clients --within`: the clients of the last seconds.

use testing::client::{Stream, request};
use testing::{Client, Scripted, Server, attack, eventually, secs};

#[test]
fn only_clients_of_the_last_seconds_are_listed() {
    let backend = Scripted::answering("app");
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbalance = \"sticky\"\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let ask = |source: &str| {
        let stream = attack::connect_from(source, &server.address("web")).unwrap();
        let mut client = Client::over(Stream::Tcp(stream));
        client.send(request("GET", "/", &[("Connection", "close")], b""));
        assert_eq!(client.response().text(), "app");
    };
    let listed = |arguments: &[&str]| -> Vec<String> {
        let all = server.ctl_json(&[&["clients"], arguments].concat());
        assert_eq!(all[0]["pool"], "app", "{all}");
        let clients = all[0]["clients"].as_array().unwrap();
        clients.iter().map(|client| client["client"].as_str().unwrap().to_owned()).collect()
    };
    ask("127.0.0.2");
    eventually("it was a while ago", secs(20), || {
        let all = server.ctl_json(&["clients"]);
        (all[0]["clients"][0]["seen_seconds"].as_u64().unwrap() >= 11).then_some(())
    });
    ask("127.0.0.3");
    assert_eq!(listed(&["app", "--within", "10s"]), ["127.0.0.3"]);
    ask("127.0.0.3");
    let text = server.said(&["clients", "--within", "10s"]);
    assert!(text.contains("2 clients remembered, the 1 seen last") && !text.contains("127.0.0.2 "), "{text}");
    assert_eq!(listed(&["--within", "1h"]), ["127.0.0.3", "127.0.0.2"]);
    assert_eq!(listed(&[]), ["127.0.0.3", "127.0.0.2"]);
    for (wrong, part) in [("0s", "longer than 0"), ("soon", "within soon: "), ("-3s", "within -3s: ")] {
        let refused = server.refused(&["clients", &format!("--within={wrong}")]);
        assert!(refused.contains(part), "{wrong}: {refused}");
    }
}
