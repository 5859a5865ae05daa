//! The account of descriptors under clients of every kind: in each order of events no more is taken than there
//! is, no client gets more than its share, and clients from other addresses are let in.

use logic::account::{ConnectionUsage, LEAST_OF_SOURCE, Percent, Refusal, Shares, SourceUsage, Usage};
use proptest::prelude::*;

const CLIENT: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    Come { source: usize },
    Leave { client: usize },
    Further { client: usize },
    Less { client: usize },
}

#[derive(Debug, Default)]
struct Client {
    source: usize,
    additional: usize,
}

struct World {
    limit: usize,
    shares: Shares,
    clients: Vec<Client>,
}

impl World {
    fn usage(&self) -> Usage {
        let taken = self.clients.iter().map(|client| CLIENT + client.additional).sum();
        Usage { limit: self.limit, taken, beside: self.clients.iter().map(|client| client.additional).sum() }
    }

    fn of_source(&self, source: usize) -> SourceUsage {
        let own: Vec<_> = self.clients.iter().filter(|client| client.source == source).collect();
        let additional = own.iter().map(|client| client.additional).sum();
        SourceUsage { held: own.len() * CLIENT + additional, additional }
    }

    fn come(&mut self, source: usize) -> Result<(), Refusal> {
        self.usage().client(self.shares, Some(self.of_source(source)), CLIENT)?;
        self.clients.push(Client { source, additional: 0 });
        Ok(())
    }

    fn additional(&mut self, at: usize) -> Result<(), Refusal> {
        let Client { source, additional } = self.clients[at];
        let held = ConnectionUsage { additional, lines: 0 };
        self.usage().additional(self.shares, held, Some(self.of_source(source)), 1)?;
        self.clients[at].additional += 1;
        Ok(())
    }

    fn step(&mut self, step: Step) {
        let at = |client: usize, count: usize| client % count.max(1);
        let count = self.clients.len();
        match step {
            Step::Come { source } => drop(self.come(source)),
            Step::Leave { client } if count > 0 => drop(self.clients.swap_remove(at(client, count))),
            Step::Further { client } if count > 0 => drop(self.additional(at(client, count))),
            Step::Less { client } if count > 0 => {
                let client = &mut self.clients[at(client, count)];
                client.additional = client.additional.saturating_sub(1);
            }
            _ => {}
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..5_usize).prop_map(|source| Step::Come { source }),
        1 => any::<usize>().prop_map(|client| Step::Leave { client }),
        12 => any::<usize>().prop_map(|client| Step::Further { client }),
        2 => any::<usize>().prop_map(|client| Step::Less { client }),
    ];
    prop::collection::vec(step, 0..1500)
}

fn shares(connection: u8, source: u8) -> Shares {
    Shares { connection: Percent::new(connection).unwrap(), source: Percent::new(source).unwrap() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_more_is_taken_than_there_is_and_further_backends_leave_a_quarter(
        limit in 8..2000_usize, connection in 1..=100_u8, source in 1..=100_u8, steps in steps(),
    ) {
        let mut world = World { limit, shares: shares(connection, source), clients: Vec::new() };
        for step in steps {
            let before = world.usage().taken;
            world.step(step);
            let usage = world.usage();
            prop_assert!(usage.taken <= limit);
            if matches!(step, Step::Further { .. }) && usage.taken > before {
                prop_assert!(limit - usage.taken >= limit / 4, "{usage:?}");
            }
        }
    }

    #[test]
    fn one_address_never_keeps_another_out(limit in 64..5000_usize, steps in steps()) {
        let mut world = World { limit, shares: shares(10, 50), clients: Vec::new() };
        for step in steps {
            world.step(match step {
                Step::Come { .. } => Step::Come { source: 0 },
                other => other,
            });
            // What the first holds is at most half, so that as many again are left for others.
            let held = world.of_source(0).held;
            prop_assert!(held <= (limit / 2).max(LEAST_OF_SOURCE), "{held} of {limit}");
        }
        let mut others = 0;
        while world.come(1).is_ok() {
            others += 1;
        }
        prop_assert!(others * CLIENT + CLIENT >= limit / 4, "{others} others of {limit}");
    }

    #[test]
    fn one_connection_never_has_more_than_its_share(limit in 64..5000_usize, steps in steps()) {
        let mut world = World { limit, shares: shares(10, 50), clients: Vec::new() };
        for step in steps {
            world.step(step);
            for client in &world.clients {
                prop_assert!(client.additional <= limit / 10);
            }
        }
    }
}

#[test]
fn any_number_of_greedy_addresses_leaves_room_for_the_next_one() {
    for addresses in [1, 2, 5, 20, 100] {
        let mut world = World { limit: 20_000, shares: shares(10, 50), clients: Vec::new() };
        for source in 0..addresses {
            while world.clients.iter().filter(|client| client.source == source).count() < 10
                && world.come(source).is_ok()
            {}
        }
        for round in 0.. {
            let before = world.usage().taken;
            for at in 0..world.clients.len() {
                // A refusal is what they all come to.
                let _ = world.additional(at);
            }
            assert!(round < 100_000);
            if world.usage().taken == before {
                break;
            }
        }
        let mut newcomers = 0;
        while newcomers < 100 && world.come(addresses + newcomers).is_ok() {
            newcomers += 1;
        }
        assert_eq!(newcomers, 100, "{addresses} addresses hold {}", world.usage().taken);
    }
}

#[test]
fn three_hundred_greedy_clients_from_as_many_addresses_leave_room_with_few_descriptors() {
    for limit in [820, 2000, 20_000] {
        let mut world = World { limit, shares: shares(10, 50), clients: Vec::new() };
        for source in 0..300 {
            assert_eq!(world.come(source), Ok(()), "{limit}: client {source}");
            // Each takes what it gets before the next one comes.
            while world.additional(source).is_ok() {}
        }
        assert_eq!(world.come(300), Ok(()), "{limit}");
    }
}

#[test]
fn a_dozen_greedy_addresses_leave_places_for_an_address_that_comes_later() {
    for limit in [829, 19_805] {
        let mut world = World { limit, shares: shares(10, 50), clients: Vec::new() };
        for source in 0..12 {
            while world.come(source).is_ok() {}
        }
        let few = LEAST_OF_SOURCE / CLIENT;
        let came = (0..few).filter(|_| world.come(12).is_ok()).count();
        assert_eq!(came, few, "{:?}", world.usage());
    }
}

#[test]
fn one_address_leaves_further_backend_connections_for_another() {
    for limit in [829, 19_805] {
        let mut world = World { limit, shares: shares(10, 50), clients: Vec::new() };
        for client in 0..12 {
            world.come(0).unwrap();
            while world.additional(client).is_ok() {}
        }
        world.come(1).unwrap();
        let page = (0..20).filter(|_| world.additional(12).is_ok()).count();
        assert_eq!(page, 20, "{:?}", world.usage());
    }
}
