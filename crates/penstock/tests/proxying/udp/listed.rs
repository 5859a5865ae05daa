//! Flows in `penstock ctl sessions`, `kill` and `top`.

use serde_json::Value;
use testing::{Server, eventually, secs};

use super::{Client, Echo, backends, config, listener};

fn flows(server: &Server, words: &[&str]) -> Vec<Value> {
    let answer = server.ctl_json(&[&["sessions"], words].concat());
    answer["sessions"].as_array().unwrap_or_else(|| panic!("{answer:#}")).clone()
}

fn local(client: &Client) -> String {
    client.0.local_addr().unwrap().to_string()
}

#[test]
fn flows_are_listed_chosen_and_ended_by_operators() {
    let (one, other) = (Echo::start(), Echo::start());
    // A second listener, without a flow and on a socket of its own.
    let more = "[listener.idle]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"app\"";
    let server = Server::start(&config(more, &backends(&[&one, &other])));
    let address = server.address("dns");
    let clients: Vec<Client> = (0..4).map(|_| Client::new(&address)).collect();
    let at: Vec<_> = clients.iter().map(|client| client.ask("hello").0).collect();
    let all = flows(&server, &[]);
    assert_eq!(all.len(), 4, "{all:#?}");
    for flow in &all {
        assert_eq!((&flow["protocol"], &flow["listener"]), (&"udp".into(), &"dns".into()), "{flow:#}");
        assert!(flow["id"].as_u64().unwrap() > 10_000_000_000_000, "{flow:#}");
        let client = clients.iter().position(|client| flow["client"] == local(client)).unwrap();
        assert_eq!(flow["backends"][0]["name"], at[client].to_string());
        assert_eq!(flow["bytes_in"], 5, "{flow:#}");
        assert!(flow["bytes_out"].as_u64().unwrap() > 5 && flow["rate"].is_number(), "{flow:#}");
        assert!(flow["age_seconds"].is_number() && flow["idle_seconds"].is_number(), "{flow:#}");
        assert_eq!((&flow["client_tcp"], &flow["request_id"]), (&Value::Null, &Value::Null));
    }
    assert_eq!(flows(&server, &["--backend", &one.address.to_string()]).len(), 2);
    assert_eq!(flows(&server, &["--listener", "idle"]).len(), 0);
    assert_eq!(flows(&server, &["--client", "127.0.0.0/8", "--limit", "3"]).len(), 3);
    let top = String::from_utf8(server.ctl(&["top", "--once"]).stdout).unwrap();
    assert!(top.contains(&local(&clients[2])), "{top}");
    // One by its id, one by its client.
    let id = all.iter().find(|flow| flow["client"] == local(&clients[0])).unwrap()["id"].as_u64();
    let gone = id.unwrap();
    let id = gone.to_string();
    let text = String::from_utf8(server.ctl(&["kill", &id, &local(&clients[1])]).stdout).unwrap();
    assert_eq!(text.matches("ended session 1000000000").count(), 2, "{text}");
    assert_eq!(flows(&server, &[]).len(), 2);
    assert_eq!(listener(&server)["endings"]["killed-by-operator"], 2);
    server.stdout.wait_for(" udp - killed-by-operator ", secs(20));
    assert_eq!(server.ctl(&["kill", &id]).status.code(), Some(1), "it is gone");
    // Its client begins a new one; the others have their flows.
    let before: Vec<_> = clients.iter().map(|client| client.ask("again").0).collect();
    assert_eq!((before[2], before[3]), (at[2], at[3]));
    let new = flows(&server, &[]);
    assert!(new.len() == 4 && new.iter().all(|flow| flow["id"].as_u64() != Some(gone)), "{new:#?}");
    let answer = server.ctl_json(&["kill", "--listener", "dns", "--yes"]);
    assert_eq!(answer["ended"].as_array().unwrap().len(), 4, "{answer:#}");
    assert_eq!(flows(&server, &[]).len(), 0);
    assert_eq!(clients[3].ask("more").1, clients[3].ask("more").1, "traffic goes on");
}

#[test]
fn more_flows_than_one_question_looks_at_are_all_found_while_datagrams_come() {
    const MANY: usize = 1500;
    let echo = Echo::start();
    let limits = "max-flows = 4000\nflows-per-source = 4000";
    let server = Server::start(&config(limits, &backends(&[&echo])));
    let address = server.address("dns");
    let clients: Vec<Client> = (0..MANY).map(|_| Client::new(&address)).collect();
    for client in &clients {
        client.ask_until_answered("hello");
    }
    eventually("all flows are there", secs(20), || {
        (flows(&server, &["--limit", "10000"]).len() == MANY).then_some(())
    });
    let answer = server.ctl_json(&["sessions", "--sort", "newest", "--limit", "2"]);
    assert_eq!(answer["matched"], MANY);
    assert_eq!(answer["sessions"][0]["client"], local(&clients[MANY - 1]), "{answer:#}");
    for client in clients.iter().step_by(100) {
        client.ask_until_answered("again");
    }
    let answer = server.ctl_json(&["kill", "--client", "127.0.0.1", "--yes"]);
    assert_eq!(answer["ended"].as_array().unwrap().len(), MANY);
}
