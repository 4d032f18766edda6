//! Messages from and to other nodes.

use crate::error::FrameError;
use crate::frame::{self, Address};
use crate::id::PeId;
use crate::message::{Message, Refusal};
use crate::node::Node;
use crate::node::store_identity::Page;

/// Maximum of concurrent requests at a node. Further requests are answered with `Lost`.
const MOST_OPEN_FINDS: usize = 1 << 16;

impl Node {
    /// Handles a frame from the network, without its length field. A refused frame changes nothing.
    ///
    /// # Errors
    ///
    /// [`FrameError`]: the frame is not valid. Close the connection if it is a stream.
    pub fn receive(&self, bytes: &[u8]) -> Result<(), FrameError> {
        self.receive_by(bytes, |_| Ok(()))
    }

    /// Handles a frame from a connection with an authenticated peer, `peer`.
    ///
    /// # Errors
    ///
    /// [`FrameError`], also if the frame claims to be from another node: close the connection.
    pub fn receive_from(&self, peer: PeId, bytes: &[u8]) -> Result<(), FrameError> {
        self.receive_by(bytes, |from| match from == peer {
            true => Ok(()),
            false => Err(FrameError::Sender { found: from, expected: peer }),
        })
    }

    fn receive_by(
        &self,
        bytes: &[u8],
        judge: impl FnOnce(PeId) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let decoded = frame::decode(bytes, self.cluster, self.options.epoch)
            .and_then(|(from, message)| judge(from).map(|()| (from, message)));
        let (from, message) = decoded.inspect_err(|_| self.count(|counts| counts.refused_frames += 1))?;
        self.heard(from);
        self.take(from, message);
        Ok(())
    }

    /// Waits until a large message can be sent to a node: an answer with data, or a leaf.
    pub(super) async fn wait_for_room(&self, to: PeId) {
        if let Some(room) = self.world.net.room(to) {
            room.await;
        }
    }

    pub(super) fn send(&self, to: PeId, message: &Message) {
        let address = Address { cluster: self.cluster, from: self.me, epoch: self.options.epoch };
        let frame = frame::encode(address, message);
        if frame.len() <= frame::MAX_BYTES {
            self.world.net.send(to, frame);
        } else if let Message::Answered { id, route_entry, hops, .. } = message {
            let reason = format!(
                "the answer of {} bytes does not fit between nodes; ask for less at once",
                frame.len()
            );
            let (result, route_entry, hops) =
                (Err(Refusal::Store { pe: self.me, reason }), route_entry.clone(), *hops);
            self.send(to, &Message::Answered { id: *id, result, route_entry, hops });
        }
    }

    fn take(&self, from: PeId, message: Message) {
        match message {
            Message::Find(find) if self.open_finds.get() >= MOST_OPEN_FINDS => self.lost(&find),
            Message::Find(find) => self.spawn(|node| Box::pin(async move { node.find(from, find).await })),
            Message::Answered { id, result, route_entry, hops } => {
                self.answered(id, result, route_entry, hops)
            }
            Message::RouteEntries(route_entries) => {
                self.compare_arrivals(&route_entries);
                self.spawn(|node| Box::pin(async move { node.patch(&route_entries).await }))
            }
            Message::Stage(staged) => {
                self.spawn(|node| Box::pin(async move { node.stage(from, staged).await }))
            }
            Message::Kept { id, page } => self.kept(id, page),
            Message::Install { id } => {
                self.spawn(|node| Box::pin(async move { node.install(from, id).await }))
            }
            Message::Installed { id } => {
                self.spawn(|node| Box::pin(async move { node.forget_decision(id).await }))
            }
            Message::Ask { id } => self.asked(from, id),
            Message::Abort { id } => self.spawn(|node| Box::pin(async move { node.abandon(id).await })),
            Message::Hello => {
                self.tell_members(from);
                self.tell_own(from);
            }
            Message::Account { hearing, from: key } => self.account(from, hearing, key),
            Message::Accounted { hearing, from: key, route_entries, staged, newest, rest } => {
                self.accounted(from, hearing, key, Page { route_entries, staged, newest, rest });
            }
            Message::Admit { birth, is_loss_accepted } => {
                self.spawn(|node| Box::pin(async move { node.admit(from, birth, is_loss_accepted).await }));
            }
            Message::Admitted { birth, is_admitted } => self.admitted(from, birth, is_admitted),
            Message::Declined { id } => self.declined(id),
            Message::Decommission { id, list, part, route_entries } => {
                self.spawn(|node| {
                    Box::pin(
                        async move { node.keep_decommission(from, id, list, part, &route_entries).await },
                    )
                });
            }
            Message::DecommissionAcknowledged { id, part } => self.decommission_acknowledged(from, id, part),
            Message::DecommissionRefused { id, why } => self.decommission_refused(from, id, why),
            Message::Left { pe } => {
                self.spawn(|node| Box::pin(async move { node.learn_left(from, pe).await }))
            }
            Message::LeftNoted { pe } => self.left_noted(from, pe),
            Message::List { list } => self.heard_of_list(from, list),
            Message::Heartbeat { clock_ms } => self.heard_clock(from, clock_ms),
            #[cfg(feature = "baseline-protocols")]
            Message::Lock(message) => self.take_lock_message(from, message),
        }
    }
}
