use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use super::*;

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Ranks that have met, and what each hears of failures.
fn meet(count: usize, timeout: Duration) -> Vec<(Watch, Receiver<Failure>)> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let rank = |rank: usize| {
        let (heard, failures) = channel();
        let act = Box::new(move |failure: &Failure| drop(heard.send(failure.clone())));
        let ranks = Ranks { rank, count };
        let meeting = Meeting { ranks, launch: "test", host: &format!("host{rank}"), timeout: SOON, act };
        let watch = match rank {
            0 => meeting.host(&listener, b"gift"),
            _ => meeting.join(&[("127.0.0.1".to_owned(), port)]),
        };
        let watch = watch.unwrap();
        watch.set_timeout(timeout);
        (watch, failures)
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..count).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What rank 0 says when others should come.
fn host(count: usize, timeout: Duration, others: impl FnOnce(u16)) -> Result<Watch> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ranks = Ranks { rank: 0, count };
    let meeting = Meeting { ranks, launch: "test", host: "host0", timeout, act: Box::new(|_| ()) };
    thread::scope(|scope| {
        let watch = scope.spawn(|| meeting.host(&listener, &[]));
        others(port);
        watch.join().unwrap()
    })
}

fn hello(rank: usize, launch: &str) -> Message {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Message::Hello(Hello { launch: launch.to_owned(), version, rank, count: 3, host: format!("host{rank}") })
}

#[test]
fn ranks_meet_and_finish() {
    let ranks = meet(4, SOON);
    for (watch, _) in &ranks {
        assert_eq!(
            (watch.hosts(), watch.gift()),
            (&["host0", "host1", "host2", "host3"].map(str::to_owned)[..], &b"gift"[..])
        );
    }
    thread::scope(|scope| {
        for (watch, _) in &ranks {
            scope.spawn(|| watch.finish().unwrap());
        }
    });
    for (watch, failures) in ranks {
        drop(watch);
        assert_eq!(failures.try_recv().ok(), None);
    }
}

/// Whichever rank goes, each of the others hears which one it was, and where it stood.
#[test]
fn a_rank_that_goes_is_named_to_all_others() {
    for gone in 0..3 {
        let mut ranks = meet(3, SOON);
        ranks[gone].0.updated(17);
        ranks[gone].0.does("training");
        // So that the others know of it.
        thread::sleep(2 * INTERVAL);
        let (watch, own) = ranks.remove(gone);
        // As the system does for a process that is killed.
        for peer in locked(&watch.shared.peers).iter() {
            peer.stream.shutdown(Shutdown::Both).unwrap();
        }
        for (_, failures) in &ranks {
            let Failure { rank, host, update, what } = failures.recv_timeout(SOON).unwrap();
            assert_eq!((rank, &host[..], update, &what[..]), (gone, &format!("host{gone}")[..], 17, "has ended"));
        }
        drop((watch, own));
    }
}

#[test]
fn a_rank_that_fails_says_why() {
    for failing in 0..3 {
        let ranks = meet(3, SOON);
        ranks[failing].0.fail(&Error::failure("the disk is full"));
        for (number, (watch, failures)) in ranks.iter().enumerate() {
            if number == failing {
                assert_eq!(failures.try_recv().ok(), None, "it knows");
                continue;
            }
            let failure = failures.recv_timeout(SOON).unwrap();
            assert_eq!(watch.failure(), Some(&failure));
            let what = format!("rank {failing} on host{failing} has failed: the disk is full, before training");
            assert_eq!(failure.error().what(), what);
        }
    }
}

/// Its connection stays, as that of a stopped process does; also if it was done, and has not ended MPI yet.
#[test]
fn a_silent_rank_is_named() {
    for is_done in [false, true] {
        let (heard, failures) = channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let act = Box::new(move |failure: &Failure| drop(heard.send(failure.clone())));
        let ranks = Ranks { rank: 0, count: 2 };
        let meeting = Meeting { ranks, launch: "test", host: "host0", timeout: SOON, act };
        thread::scope(|scope| {
            let watch = scope.spawn(|| meeting.host(&listener, &[]));
            let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let message = Message::Hello(Hello {
                launch: "test".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                rank: 1,
                count: 2,
                host: "host1".to_owned(),
            });
            send(&stream, &message).unwrap();
            let watch = watch.join().unwrap().unwrap();
            if is_done {
                send(&stream, &Message::Done).unwrap();
            }
            watch.set_timeout(Duration::from_secs(2));
            let failure = failures.recv_timeout(SOON).unwrap();
            assert_eq!((failure.rank, &failure.what[..]), (1, "has been silent for 2 seconds"));
            assert_eq!(watch.finish().is_err(), !is_done);
            drop(stream);
        });
    }
}

/// Neither what is not of this run nor what is not understood keeps ranks from meeting.
#[test]
fn strangers_are_not_heard() {
    let mut streams = Vec::new();
    let watch = host(3, SOON, |port| {
        let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut junk = connect();
        junk.write_all(&[0xff; 100]).unwrap();
        streams.extend([junk, connect()]);
        for message in [hello(1, "another"), Message::Done, hello(1, "test"), hello(2, "test")] {
            let stream = connect();
            send(&stream, &message).unwrap();
            streams.push(stream);
        }
    });
    assert_eq!(watch.unwrap().hosts().len(), 3);
}

#[test]
fn ranks_that_do_not_come_or_come_twice_are_named() {
    let error = host(3, Duration::from_millis(200), |_| ()).map(drop).unwrap_err();
    assert!(error.what().starts_with("ranks 1, 2 have not connected"), "{error}");
    let mut streams = Vec::new();
    let twice = host(3, SOON, |port| {
        for _ in 0..2 {
            let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            send(&stream, &hello(1, "test")).unwrap();
            streams.push(stream);
        }
    });
    assert_eq!(twice.map(drop).unwrap_err().what(), "two processes say they are rank 1: on host1 and on host1");
    let ranks = Ranks { rank: 1, count: 2 };
    let timeout = Duration::from_millis(200);
    let meeting = Meeting { ranks, launch: "test", host: "host1", timeout, act: Box::new(|_| ()) };
    // Nobody listens there.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = meeting.join(&[("127.0.0.1".to_owned(), port)]).map(drop).unwrap_err();
    assert!(error.what().starts_with("cannot connect to rank 0 at 127.0.0.1"), "{error}");
}

#[test]
fn who_keeps_others_waiting_is_named() {
    let ranks = meet(3, SOON);
    ranks[1].0.does("preparing the text");
    ranks[2].0.waits(true);
    let since = Instant::now();
    let want = "rank 1 on host1, which is preparing the text";
    while ranks[0].0.awaited().as_deref() != Some(want) {
        assert!(since.elapsed() < SOON, "{:?}", ranks[0].0.awaited());
        thread::sleep(Duration::from_millis(20));
    }
}
