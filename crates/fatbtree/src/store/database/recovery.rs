//! Opening a store: reads its state, and checks that it belongs to this node.

use serde::de::DeserializeOwned;

use azekura::{Error, Transaction};

use super::{
    BIRTH, Base, DECIDED, FORWARDING, IDENTITY, LEAVES, LEFT, LIST, MET, NEXT_PAGE, Open, SELF, SETTLED,
    SHARES, STAGED, decode, encode,
};
use crate::error::StoreError;
use crate::id::PeId;
use crate::leaf::{LeafHead, RouteEntry, Row, Staged};
use crate::store::{Founding, Recovered};

/// The node's tables as stored, not decoded.
struct Written {
    identity: Option<Vec<u8>>,
    shares: Option<Vec<u8>>,
    next_page: Option<Vec<u8>>,
    birth: Option<Vec<u8>>,
    settled: Option<Vec<u8>>,
    list: Option<Vec<u8>>,
    met: Vec<Row>,
    left: Vec<Row>,
    heads: Vec<Row>,
    staged: Vec<Row>,
    decided: Vec<Row>,
    forwarding: Vec<Row>,
}

impl Written {
    fn read(tx: &Transaction) -> Result<Self, Error> {
        let own = tx.table(&SELF)?;
        Ok(Self {
            identity: own.get(IDENTITY)?,
            shares: own.get(SHARES)?,
            next_page: own.get(NEXT_PAGE)?,
            birth: own.get(BIRTH)?,
            settled: own.get(SETTLED)?,
            list: own.get(LIST)?,
            met: all(&tx.table(&MET)?)?,
            left: all(&tx.table(&LEFT)?)?,
            heads: all(&tx.table(&LEAVES)?)?,
            staged: all(&tx.table(&STAGED)?)?,
            decided: all(&tx.table(&DECIDED)?)?,
            forwarding: all(&tx.table(&FORWARDING)?)?,
        })
    }

    /// Returns the number of earlier starts, or `None` if the store belongs to no node yet.
    fn incarnation(&self, founding: &Founding) -> Result<Option<u64>, StoreError> {
        if self.shares.as_ref().is_some_and(|found| *found != encode(&founding.shares)) {
            return Err(StoreError::OtherShares);
        }
        let Some(bytes) = &self.identity else { return Ok(None) };
        let (cluster, pe, incarnation): (u64, PeId, u64) = decode("identity", IDENTITY, bytes)?;
        if (cluster, pe) != (founding.cluster, founding.pe) {
            return Err(StoreError::Stranger {
                found: pe,
                found_cluster: cluster,
                expected: founding.pe,
                expected_cluster: founding.cluster,
            });
        }
        Ok(Some(incarnation))
    }

    fn decoded(&self, incarnation: u64, database: u64) -> Result<Recovered, StoreError> {
        let decided = |(key, to): &Row| Ok((decode("move", key, key)?, decode("decided move", key, to)?));
        let met = |(key, birth): &Row| Ok((pe_of(key)?, decode("name of another store", key, birth)?));
        Ok(Recovered {
            incarnation,
            heads: decode_values::<LeafHead>("leaf", &self.heads)?,
            staged: decode_values::<Staged>("staged leaf", &self.staged)?,
            decided: self.decided.iter().map(decided).collect::<Result<_, StoreError>>()?,
            forwarding: decode_values::<RouteEntry>("given range", &self.forwarding)?,
            next_page: self
                .next_page
                .as_ref()
                .map_or(Ok(1), |bytes| decode("page number", NEXT_PAGE, bytes))?,
            birth: match &self.birth {
                Some(bytes) => decode("name of the store", BIRTH, bytes)?,
                None => new_name()?,
            },
            // A store without a name was written by a version before names. Such a store has its keys.
            is_settled: self.settled.is_some() || (self.identity.is_some() && self.birth.is_none()),
            is_copy: match self.settled.as_deref() {
                None | Some([]) => false,
                Some(bytes) => decode::<u64>("settled store", SETTLED, bytes)? != database,
            },
            met: self.met.iter().map(met).collect::<Result<_, StoreError>>()?,
            left: self.left.iter().map(|(key, _)| pe_of(key)).collect::<Result<_, _>>()?,
            list: self
                .list
                .as_ref()
                .map_or(Ok(0), |bytes| decode("version of the list of members", LIST, bytes))?,
        })
    }
}

impl Base {
    pub(super) fn recover(&self, founding: &Founding) -> Result<Recovered, StoreError> {
        let written = self.db.transact(|tx| {
            tx.table(&self.rows)?; // creates the table in a new store
            Written::read(tx)
        })?;
        let before = written.incarnation(founding)?;
        if before.is_none() {
            self.refuse_rows_of_others(founding)?;
        }
        let found = written.decoded(before.unwrap_or(0) + 1, self.db.id())?;
        let identity = encode(&(founding.cluster, founding.pe, found.incarnation));
        self.db.transact(|tx| {
            let own = tx.table(&SELF)?;
            own.insert(IDENTITY, &identity)?;
            own.insert(SHARES, &encode(&founding.shares))?;
            own.insert(BIRTH, &encode(&found.birth))?;
            if found.is_settled && !found.is_copy {
                own.insert(SETTLED, &encode(&self.db.id()))?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Refuses a database that is new to a node and has rows that belong to other nodes.
    fn refuse_rows_of_others(&self, founding: &Founding) -> Result<(), StoreError> {
        for (range, pe) in founding.ranges().filter(|(_, pe)| *pe != founding.pe) {
            if let Some((key, _)) = self.rows(&range, 1, false)?.into_iter().next() {
                return Err(StoreError::RowOfAnother { key, owner: pe });
            }
        }
        Ok(())
    }
}

fn all(table: &Open<'_>) -> Result<Vec<Row>, Error> {
    table.iter().collect()
}

fn decode_values<T: DeserializeOwned>(what: &'static str, rows: &[Row]) -> Result<Vec<T>, StoreError> {
    rows.iter().map(|(key, value)| decode(what, key, value)).collect()
}

fn pe_of(key: &[u8]) -> Result<PeId, StoreError> {
    let bytes = key.try_into().map_err(|_| StoreError::Damaged { what: "PE", key: key.to_vec() })?;
    Ok(PeId(u16::from_be_bytes(bytes)))
}

/// Returns a random name for a new store.
fn new_name() -> Result<u64, StoreError> {
    azekura_auth::nonce::<8>().map(u64::from_le_bytes).map_err(StoreError::Name)
}
