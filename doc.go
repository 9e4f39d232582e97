// Package bourse is a message broker to build into a program: the queues, exchanges,
// acknowledgements and dead letters of RabbitMQ as a library. One process gets a durable job
// queue from a directory, without a server.
//
//	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: "data"})
//	err = b.Declare(ctx, bourse.Queue{Name: "mail", Priorities: 10, MaxRetries: 5})
//	err = b.Publish(ctx, bourse.Message{RoutingKey: "mail", Body: body})
//	err = b.Work(ctx, "mail", send, bourse.WorkOptions{Concurrency: 8})
//
// # Concepts
//
// A publisher sends a [Message] to an [Exchange], which finds queues for it by its bindings.
// Each [Queue] holds the message on its own: ready, until it is lent to a consumer as a
// [Delivery]; unacked, until the consumer gives its verdict; and gone, once acked. A loan that goes
// wrong (Nack, a missed deadline, a lost process) puts the message back to its old
// place, counted as a failure; one failure more than Queue.MaxRetries, or a Reject, is its death, and
// it moves to a dead-letter exchange with its history, or to [ParkingQueue].
//
// # What is promised
//
// Publish returns nil only when the message is on stable storage (fsync has returned) in every queue
// that it was routed to. It is then delivered until it is acked, dies, is cancelled, or is purged or deleted with its
// queue: at least once. A second delivery has a cause, and shows it in Deliveries and
// Failures; consumers must bear it, with the help of Message.ID, which never changes. A
// message is with one consumer at a time. Within a queue and priority, messages that were never handed
// out come in the order in which their publishes were confirmed. Messages with a Message.GroupID keep this
// order within their group, where they are worked on one at a time, also over failures; groups take turns.
//
// A consumer sees a message only after it is durable, and its loan is in the log before the
// handler runs: a job that kills the process is counted, and is dead after MaxRetries+1
// deliveries. An Ack is in the log with the next commit; a crash before that brings the
// message back, which [Delivery.AckSync] excludes.
//
// A publish that is retried with the same Message.ID is stored once in a queue with a [Dedup], whatever crashed in between. A
// consumer recognises what it has done before by the queue's [Inbox], whose record is made in the same commit as the ack.
//
// Not promised: exactly-once effects outside the broker, an order over several queues or consumers, and
// that a message whose publish failed with ErrUnknownOutcome is not there.
//
// # Looking into queues
//
// [Broker.Browse] shows the messages of a queue in whatever state they are and takes none. What it shows can be removed
// ([Broker.Cancel]), made ready before its time ([Broker.Promote]), changed ([Broker.Edit], [Broker.SetPriority]), and, if it is
// a dead letter, brought back to where it died ([Broker.Replay]).
//
// # Schedules
//
// A [Schedule] is declared as a queue is, and publishes one message at each of its times: by a cron expression in a time zone, or
// at a fixed rate. The time of a fire is in the message's id and Timestamp. What was due while no broker was open is passed over,
// made up for once, or in full: see [CatchUp].
//
// # Errors
//
// Refusals change nothing and match a sentinel ([ErrUnroutable], [ErrNotFound], ...); those with
// data are a [*InvalidError], [*PreconditionError], [*RejectedError] or [*BatchError]; a [*RejectedError] names the queues that
// had no room, while others may have taken the message. [ErrUnknownOutcome] says that it
// cannot be told: retry with the same Message.ID. After [ErrStorage] from a failed write or sync, the
// broker accepts nothing more, since what the disk holds is no longer known: close it, and open it again. [ErrMemoryFull]
// says that consumers were behind by more than Options.MemoryLimit allows until the context of the publish ended. With
// [ErrDiskFull] acks and deliveries go on, and publishing does once there is space. That is before the disk is full: Options.MinFreeDisk
// says how much of it stays free.
//
// # Limits
//
// Queue.MaxMessages and Queue.MaxBytes bound what waits in a queue, and Queue.Overflow says what becomes of a publish without room: it
// is refused, older messages go for it, or it waits. What consumers hold does not count and always has room to come back.
//
// # Time
//
// Everything that waits uses Options.Clock. The system clock is read once at the start and followed by the
// monotonic clock, so a step of the wall clock moves no deadline.
//
// # From AMQP 0-9-1
//
//	exchange.declare, queue.declare, *.bind    Broker.Declare
//	*.declare, passive                         Broker.Check
//	policies                                   Broker.Update
//	x-expires                                  Queue.Expires
//	exclusive                                  Queue.Exclusive, of transient queues
//	auto-delete                                Queue.AutoDelete, of transient queues
//	exchange.delete, queue.delete, *.unbind    Broker.Delete, Broker.DeleteIf
//	queue.purge                                Broker.Purge; Broker.Cancel for one message
//	basic.publish, confirm.select              Broker.Publish, PublishAsync, PublishBatch
//	delivery_mode 1                            Message.Transient; without it a message is persistent
//	tx.select, tx.commit                       Broker.PublishAtomic, Delivery.AckAndPublish
//	basic.return                               ErrUnroutable, with Message.Mandatory
//	(pausing a queue)                          Broker.Pause, Broker.Resume
//	(limiting deliveries in a time)            Queue.Rate
//	basic.consume, basic.qos                   Broker.Subscribe with SubscribeOptions.Prefetch
//	x-priority of basic.consume                SubscribeOptions.Priority
//	x-single-active-consumer                   Queue.SingleActiveConsumer, and Delivery.Epoch against late ones
//	basic.deliver                              Subscription.Next, NextBatch, All
//	basic.get                                  Broker.Get
//	basic.ack                                  Delivery.Ack, AckSync
//	basic.ack, multiple                        Subscription.AckUpTo
//	basic.nack, basic.reject, requeue          Delivery.Nack (counted), Delivery.Release (not counted)
//	basic.nack, basic.reject, no requeue       Delivery.Reject
//	basic.cancel                               Subscription.Close
//
// Where it differs from RabbitMQ with quorum queues, on purpose: Nack counts as a failure, since the consumer says
// that it was one; a returned message goes to its old place in its level, not behind other returns; a missed
// deadline takes back that delivery alone; a message that died by rejection or retries is never dropped
// without being told to; a dead-letter cycle parks the message instead of dropping it; what a closed subscription
// held goes back without a count; a missing priority is 0; and a single active consumer is so until it ends, also
// if one of a higher priority comes, to which a quorum queue would change over.
package bourse
