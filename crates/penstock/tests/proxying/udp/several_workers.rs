//! Workers have a socket each, among which the kernel distributes the clients: the flows, and the limits of the listener in
//! sum.

use super::*;

/// How many flows each of two workers has. The number of a session tells its worker.
fn by_worker(server: &Server, filter: &[&str]) -> [usize; 2] {
    let answer = server.ctl_json(&[&["sessions", "--limit", "1000"], filter].concat());
    let mut count = [0; 2];
    for session in answer["sessions"].as_array().unwrap() {
        count[(session["id"].as_u64().unwrap() % 2) as usize] += 1;
    }
    count
}

#[test]
fn each_worker_has_flows_of_its_own_and_the_limits_hold_in_sum() {
    let echo = Echo::start();
    // Each worker has room for all friends beside the flows of the crowd: the kernel may give one of them any share.
    let limits = "max-flows = 100\nflows-per-source = 20\nidle-timeout = \"10m\"";
    let text = config(limits, &backends(&[&echo])).replace("workers = 1", "workers = 2");
    let server = Server::start(&text);
    let address = server.address("dns");
    let from = |third: u8, last: u8| Client::from(Ipv4Addr::new(127, 14, third, last).into(), &address);
    let friends: Vec<Client> = (1..=30).map(|last| from(0, last)).collect();
    let flows: Vec<_> = friends.iter().map(|friend| friend.ask("hello")).collect();
    let stay = |when: &str| {
        for (friend, flow) in friends.iter().zip(&flows) {
            assert_eq!(friend.ask("again"), *flow, "{when}");
        }
    };
    stay("each client has one worker");
    let [one, other] = by_worker(&server, &[]);
    assert!(one > 0 && other > 0 && one + other == 30, "{one} and {other}");
    // One source with many ports comes to both workers.
    let crowd: Vec<Client> = (0..60).map(|_| from(1, 1)).collect();
    crowd.iter().for_each(|client| _ = client.ask("hello"));
    eventually("half of its flows each", secs(10), || {
        (by_worker(&server, &["--client", "127.14.1.1"]) == [10, 10]).then_some(())
    });
    // Many sources come to both.
    let crowd: Vec<Client> = (1..=200).map(|last| from(2, last)).collect();
    crowd.iter().for_each(|client| _ = client.ask("hello"));
    eventually("half of all flows each", secs(10), || (by_worker(&server, &[]) == [50, 50]).then_some(()));
    assert_eq!(listener(&server)["connections"], 100);
    stay("flows of clients that have spoken after a reply keep their places");
    let ended = server.ctl_json(&["kill", "--yes", "--listener", "dns"]);
    assert_eq!(ended["ended"].as_array().unwrap().len(), 100, "{ended:#}");
    assert_eq!(by_worker(&server, &[]), [0, 0]);
}
