"""Can the reward be had without the answer? Adversarial completions of every task, judged by the rewards."""

from grpo.audit.adversaries import Attempt, Role, attempts
from grpo.audit.audit import AuditReport, Kind, LengthPoint, Refusal, audit

__all__ = ["Attempt", "AuditReport", "Kind", "LengthPoint", "Refusal", "Role", "attempts", "audit"]
