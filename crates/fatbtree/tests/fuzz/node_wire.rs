//! Fuzz entry: input of a node from a stranger or a faulty node. The result is messages or an error, never a
//! panic, and no handshake succeeds without the key.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use azekura_auth::AuthKey;
use azekura_fatbtree::frame::{self, Address};
use azekura_fatbtree::tcp::handshake::{self, Identity};
use azekura_fatbtree::tcp::receive_all;
use azekura_fatbtree::{
    Credentials, DecommissionId, DecommissionRefusal, Find, KeyRange, ListMark, Message, MoveId, PageNo,
    PeId, RequestId, RouteEntry, Staged, Target, TransactionId, Work,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const ADDRESS: Address = Address { cluster: 7, from: PeId(1), epoch: 1 };
const ME: Identity = Identity { cluster: 7, pe: PeId(0), epoch: 1, store: STORE, list: LIST, clock_ms: 0 };
const LIST: ListMark = ListMark { version: 3, digest: 5 };
const STORE: Credentials = Credentials { birth: 5, is_settled: true, is_loss_accepted: false };

/// Runs the parsers on the input. In the first byte, bit 0 corrects each frame's checksum, so that the code
/// behind the check is reached. Bit 1 runs the handshake of the called node, bit 2 the handshake of the
/// caller. The remaining bytes are the input.
pub(crate) fn node_wire(data: &[u8]) {
    let (&how, bytes) = data.split_first().unwrap_or((&0, &[]));
    let bytes = if how & 1 != 0 { mended(bytes) } else { bytes.to_vec() };
    frames(&bytes);
    let key = AuthKey::new(b"a key that nobody here knows").expect("long enough");
    if how & 2 != 0 {
        let answered =
            at_once(handshake::answer(&mut Talk(&bytes), ME, &key, |_| true, async |_, _| Some(true)));
        assert!(answered.is_err(), "no proof can be known beforehand: the nonce is new");
    }
    if how & 4 != 0 {
        let called = at_once(handshake::call(&mut Talk(&bytes), ME, PeId(1), 1, &key));
        assert!(called.is_err(), "no proof can be known beforehand: the nonce is new");
    }
}

/// Reads frames as a node does. Encoding and decoding a message that was read returns the same message.
fn frames(bytes: &[u8]) {
    let mut taken = 0;
    let _ = at_once(receive_all(&mut Talk(bytes), |frame| {
        taken += frame.len() + 4;
        let (from, message) = frame::decode(frame, ADDRESS.cluster, ADDRESS.epoch)?;
        let again = frame::encode(Address { from, ..ADDRESS }, &message);
        let decoded = frame::decode(&again[4..], ADDRESS.cluster, ADDRESS.epoch);
        assert_eq!(decoded.expect("it was just encoded"), (from, message));
        Ok(())
    }));
    assert!(taken <= bytes.len(), "a frame ends where the stream does");
}

/// Returns the bytes with correct checksums.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let (mut mended, mut at) = (bytes.to_vec(), 0);
    while let Some(head) = mended.get(at..at + 8) {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let end = mended.len().min((at + 4).saturating_add(length));
        if end < at + 8 {
            break;
        }
        let sum = crc32c::crc32c(&mended[at + 8..end]);
        mended[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
    mended
}

fn at_once<T>(task: impl Future<Output = T>) -> T {
    match pin!(task).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("memory does not wait"),
    }
}

/// A connection with this input. Its output is discarded.
struct Talk<'a>(&'a [u8]);

impl AsyncRead for Talk<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (some, rest) = self.0.split_at(self.0.len().min(buffer.remaining()));
        buffer.put_slice(some);
        self.0 = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Talk<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let id = RequestId { origin: PeId(1), incarnation: 3, number: 9 };
    let move_id = MoveId { source: PeId(1), incarnation: 2, number: 1 };
    let range = KeyRange::new(*b"d", Some(b"m"));
    let route_entry = RouteEntry { range: range.clone(), pe: PeId(1), page: PageNo(4), version: 7 };
    let head = azekura_fatbtree::LeafHead { page: PageNo(5), range: range.clone(), right: None, version: 8 };
    let rows = vec![(b"e".to_vec(), b"value".to_vec()), (b"f".to_vec(), vec![0; 40])];
    let run = Work::Run { is_write: true, others: vec![b"f".to_vec()], bytes: vec![1; 30] };
    let find = Find {
        id,
        target: Target::At(b"e".to_vec()),
        work: run,
        page: PageNo::ROOT,
        floor: 6,
        hops: 1,
        time_ms: 1000,
        until: None,
    };
    let decommission = DecommissionId { incarnation: 3, number: 2 };
    let transaction = TransactionId(id);
    let step = Work::Step {
        id: transaction,
        coordinator: Some(PeId(2)),
        is_write: true,
        others: vec![b"g".to_vec()],
        bytes: vec![2; 9],
    };
    let read = Work::Read {
        id: transaction,
        opened: vec![PeId(1), PeId(2)],
        within: range.clone(),
        others: vec![b"g".to_vec()],
        bytes: vec![3; 9],
    };
    let end = Work::End { id: transaction, coordinator: PeId(2), is_commit: true };
    let messages = [
        Message::Find(Find { work: step, ..find.clone() }),
        Message::Find(Find { work: read, ..find.clone() }),
        Message::Find(Find { work: end, ..find.clone() }),
        Message::Find(Find { work: Work::AtNode { pe: PeId(2), bytes: vec![4; 9] }, ..find.clone() }),
        Message::Find(find),
        Message::Answered {
            id,
            result: Err(azekura_fatbtree::Refusal::Elsewhere),
            route_entry: Some(route_entry.clone()),
            hops: 2,
        },
        Message::RouteEntries(vec![route_entry.clone(), route_entry.clone()]),
        Message::Stage(Staged { id: move_id, head, rows, path: vec![route_entry.clone()] }),
        Message::Install { id: move_id },
        Message::Account { hearing: (2, 1), from: b"d".to_vec() },
        Message::Accounted {
            hearing: (2, 1),
            from: b"d".to_vec(),
            route_entries: vec![route_entry.clone()],
            staged: vec![(move_id, route_entry.clone())],
            newest: 9,
            rest: Some(b"e".to_vec()),
        },
        Message::Admit { birth: 77, is_loss_accepted: true },
        Message::Admitted { birth: 77, is_admitted: false },
        Message::Hello,
        Message::Declined { id: move_id },
        Message::Decommission {
            id: decommission,
            list: LIST,
            part: 1,
            route_entries: vec![route_entry.clone()],
        },
        Message::DecommissionAcknowledged { id: decommission, part: 1 },
        Message::DecommissionRefused { id: decommission, why: DecommissionRefusal::List(LIST) },
        Message::DecommissionRefused {
            id: decommission,
            why: DecommissionRefusal::NotReady("not yet".to_owned()),
        },
        Message::Left { pe: PeId(2) },
        Message::LeftNoted { pe: PeId(2) },
        Message::List { list: LIST },
    ];
    let frames: Vec<u8> = messages.iter().flat_map(|message| frame::encode(ADDRESS, message)).collect();
    let mut hello = b"AZKNODE\n".to_vec();
    hello.extend([
        handshake::VERSION,
        frame::VERSION,
        0,
        0,
        1,
        0,
        0,
        0,
        7,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]);
    hello.resize(handshake::HELLO_BYTES + 33, 0x5a);
    let with = |how: u8, bytes: &[u8]| [&[how], bytes].concat();
    vec![
        with(0, &frames),
        with(1, &frames),
        with(2, &hello),
        with(4, &hello),
        with(7, &[&hello[..], &frames].concat()),
    ]
}
