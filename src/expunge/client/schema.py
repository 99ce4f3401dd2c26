"""The client's tables, and how a database of an earlier version becomes one of this version.

What can be read without the vault: how many samples there are, of which label, since when, in which
state, and when a deletion is due. Ids, subjects, features, targets and salts are sealed; ids and subjects are found by tags
that only the vault's store key can make.
"""

from __future__ import annotations

SETTINGS: dict[str, str | int] = {
    "page_size": 8192,  # a row with a feature of 768 float64 fits one page
    "temp_store": "MEMORY",  # nothing is written that is not in these files
}

MIGRATIONS: tuple[str, ...] = (
    """
    -- Who we are, and where we stand with the server.
    CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

    -- The request that is being offered, until its receipt is here; never more than one.
    CREATE TABLE compositions (
        sequence INTEGER PRIMARY KEY,
        slot INTEGER NOT NULL,            -- of the vault: `sealed` is the nonce and the answers to audits
        sealed BLOB NOT NULL,
        message BLOB,                     -- sealed; only where it could not be made again bit for bit
        spec TEXT NOT NULL,               -- canonical JSON of the spec that it is made under
        kind TEXT NOT NULL,
        leave INTEGER NOT NULL,
        reset INTEGER NOT NULL
    );

    -- Truth: samples, and what is pending. The states are those of `expunge.client.states`.
    CREATE TABLE samples (
        slot INTEGER PRIMARY KEY,         -- of the vault: the key of `names` and `content`
        id_tag BLOB NOT NULL,
        subject_tag BLOB,
        label INTEGER,                    -- class index; NULL for a real target
        added INTEGER NOT NULL,           -- seconds since 1970
        state TEXT NOT NULL CHECK (state IN ('adding', 'live', 'deleting', 'withdrawn')),
        sequence INTEGER REFERENCES compositions (sequence),
        held INTEGER NOT NULL DEFAULT 0,  -- whether a receipt says that the server has it
        replaces INTEGER REFERENCES samples (slot) ON DELETE SET NULL,
        order_id TEXT,                    -- of the erasure order that it is deleted for
        commitment BLOB NOT NULL,
        names BLOB NOT NULL,
        content BLOB NOT NULL,
        CHECK (state <> 'withdrawn' OR sequence IS NOT NULL)
    );
    CREATE INDEX samples_by_id ON samples (id_tag);
    CREATE UNIQUE INDEX samples_with_one_id ON samples (id_tag) WHERE state IN ('adding', 'live');
    CREATE INDEX samples_by_subject ON samples (subject_tag) WHERE subject_tag IS NOT NULL;
    CREATE INDEX samples_by_label ON samples (label);
    CREATE INDEX samples_by_time ON samples (added);
    CREATE INDEX samples_by_state ON samples (state, sequence);
    CREATE INDEX samples_by_replaced ON samples (replaces) WHERE replaces IS NOT NULL;

    -- Erasure orders that have been carried out here; `sequence` and `found` once a request answers them.
    CREATE TABLE orders (
        id TEXT PRIMARY KEY,
        sequence INTEGER,
        found INTEGER,
        answered INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    -- Audits that have been answered.
    CREATE TABLE audits (id TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;

    -- Evidence: receipts by sequence number; amendments and rotations in their order.
    CREATE TABLE documents (
        kind TEXT NOT NULL,
        number INTEGER NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (kind, number)
    ) WITHOUT ROWID;
    """,
    """
    -- Whether an attempt to offer the request may have arrived, though no answer came.
    ALTER TABLE compositions ADD COLUMN doubtful INTEGER NOT NULL DEFAULT 1;

    -- The samples that have to be gone before an order may be answered; `samples.order_id` is the one order that counts each.
    CREATE TABLE order_samples (
        order_id TEXT NOT NULL,
        slot INTEGER NOT NULL REFERENCES samples (slot) ON DELETE CASCADE,
        PRIMARY KEY (order_id, slot)
    ) WITHOUT ROWID;
    CREATE INDEX order_samples_by_slot ON order_samples (slot);
    INSERT INTO order_samples SELECT order_id, slot FROM samples WHERE order_id IS NOT NULL;

    -- Whole answers of restored servers, which name subjects; size and root of the lost log stay, as every other document.
    DELETE FROM documents WHERE kind = 'lost-log' AND number % 2 = 1;
    """,
    """
    -- Sealed: this client's part in a round of secure aggregation; what an aggregator has forwarded.
    CREATE TABLE kept (
        name TEXT PRIMARY KEY,
        slot INTEGER NOT NULL,
        sealed BLOB NOT NULL
    );
    """,
    """
    -- When what is pending may wait for more samples no longer, in seconds since 1970: NULL for additions that wait until there are enough.
    ALTER TABLE samples ADD COLUMN due INTEGER;
    UPDATE samples SET due = 0 WHERE state IN ('deleting', 'withdrawn');
    -- When a quarter of the order's time has passed.
    ALTER TABLE orders ADD COLUMN due INTEGER NOT NULL DEFAULT 0;
    """,
)

# As in `expunge.server.storage.schema`: 3 of 0.1.0.
RELEASED = 3
