; Household tasks: an agent walks between receptacles and moves, cleans, heats, cools, switches on and slices objects.
; Every name is part of the interface of ALFWorld's games. `checked` has no meaning: an action must change something.
(define (domain alfred)
  (:requirements :adl :typing)
  (:types agent location receptacle object rtype otype)

  (:predicates
    (atLocation ?a - agent ?l - location)
    (receptacleAtLocation ?r - receptacle ?l - location)
    (objectAtLocation ?o - object ?l - location)
    (receptacleType ?r - receptacle ?t - rtype)
    (objectType ?o - object ?t - otype)
    (canContain ?rt - rtype ?ot - otype)
    (inReceptacle ?o - object ?r - receptacle)
    (isReceptacleObject ?o - object)
    (inReceptacleObject ?inner - object ?outer - object)
    (openable ?r - receptacle)
    (opened ?r - receptacle)
    (pickupable ?o - object)
    (holds ?a - agent ?o - object)
    (holdsAny ?a - agent)
    (cleanable ?o - object)
    (isClean ?o - object)
    (heatable ?o - object)
    (isHot ?o - object)
    (coolable ?o - object)
    (isCool ?o - object)
    (toggleable ?o - object)
    (isToggled ?o - object)
    (sliceable ?o - object)
    (isSliced ?o - object)
    (checked ?x))

  (:action look
    :parameters (?a - agent ?l - location)
    :precondition (and (atLocation ?a ?l))
    :effect (and (checked ?l)))

  (:action inventory
    :parameters (?a - agent)
    :precondition ()
    :effect (and (checked ?a)))

  (:action help
    :parameters (?a - agent)
    :precondition ()
    :effect (and (checked ?a)))

  (:action examineReceptacle
    :parameters (?a - agent ?r - receptacle)
    :precondition (and
      (exists (?l - location)
        (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l))))
    :effect (and (checked ?r)))

  (:action examineObject
    :parameters (?a - agent ?o - object)
    :precondition (and (holds ?a ?o))
    :effect (and (checked ?o)))

  (:action GotoLocation
    :parameters (?a - agent ?lStart - location ?lEnd - location ?r - receptacle)
    :precondition (and (atLocation ?a ?lStart) (receptacleAtLocation ?r ?lEnd))
    :effect (and (not (atLocation ?a ?lStart)) (atLocation ?a ?lEnd)))

  (:action OpenObject
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and
      (openable ?r)
      (atLocation ?a ?l)
      (receptacleAtLocation ?r ?l)
      (not (opened ?r)))
    :effect (and (opened ?r) (checked ?r)))

  (:action CloseObject
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and
      (openable ?r)
      (atLocation ?a ?l)
      (receptacleAtLocation ?r ?l)
      (opened ?r))
    :effect (and (not (opened ?r))))

  (:action PickupObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and
      (pickupable ?o)
      (atLocation ?a ?l)
      (receptacleAtLocation ?r ?l)
      (inReceptacle ?o ?r)
      (not (holdsAny ?a))
      (or (not (openable ?r)) (opened ?r)))
    :effect (and
      (not (inReceptacle ?o ?r))
      (not (objectAtLocation ?o ?l))
      (holds ?a ?o)
      (holdsAny ?a)))

  (:action PutObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype)
    :precondition (and
      (holds ?a ?o)
      (atLocation ?a ?l)
      (receptacleAtLocation ?r ?l)
      (or (not (openable ?r)) (opened ?r))
      (objectType ?o ?ot)
      (receptacleType ?r ?rt)
      (canContain ?rt ?ot))
    :effect (and
      (inReceptacle ?o ?r)
      (objectAtLocation ?o ?l)
      (not (holds ?a ?o))
      (not (holdsAny ?a))))

  (:action CleanObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and
      (cleanable ?o)
      (receptacleType ?r SinkBasinType)
      (atLocation ?a ?l)
      (receptacleAtLocation ?r ?l)
      (holds ?a ?o))
    :effect (and (isClean ?o)))

  (:action HeatObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and
      (heatable ?o)
      (receptacleType ?r MicrowaveType)
      (atLocation ?a ?l)
      (receptacleAtLocation ?r ?l)
      (holds ?a ?o))
    :effect (and (isHot ?o) (not (isCool ?o))))

  (:action CoolObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and
      (coolable ?o)
      (receptacleType ?r FridgeType)
      (atLocation ?a ?l)
      (receptacleAtLocation ?r ?l)
      (holds ?a ?o))
    :effect (and (isCool ?o) (not (isHot ?o))))

  (:action ToggleObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and
      (toggleable ?o)
      (atLocation ?a ?l)
      (receptacleAtLocation ?r ?l)
      (inReceptacle ?o ?r))
    :effect (and (isToggled ?o)))

  (:action SliceObject
    :parameters (?a - agent ?l - location ?co - object ?ko - object)
    :precondition (and
      (sliceable ?co)
      (or (objectType ?ko KnifeType) (objectType ?ko ButterKnifeType))
      (atLocation ?a ?l)
      (objectAtLocation ?co ?l)
      (holds ?a ?ko))
    :effect (and (isSliced ?co)))
)
