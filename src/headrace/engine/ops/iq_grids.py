"""The tables of points that GGUF's IQ formats choose from, as llama.cpp publishes them.

Knows the points. Does not know how a format refers to them: `dequantize.py` does.

A point is a 16-bit code: eight values of two bits, or four values of four bits, first value lowest. A table lists its
points in ascending order of their codes, so a table is a *set* of codes: 65,536 bits, one per possible code, deflated.
"""

import base64
import zlib
from functools import cache

import numpy as np
import numpy.typing as npt

_POINT_SETS = {
    "IQ1_S": (
        "c-rk)O>f&s4CQb>bQQe$0V7q)UL7O3%PMxys&d$?<8`{%LPqVsUy>umBRfH(_Ruvd0*O76ha!jM<D*KOgS7x2TKWU}?qxm55?aUCYb;EwPQM#u"
        "_`L_j6nULvy#M<W^dWk)lr?>e?sniUklxJfu_V0+x$Q9CpUP?hrTU0$#{#E3{bYars{gEy?Lzp_Yi{u^|8rWGXZ!#E@`w1hfK07|e~`z~!BVl`"
        "-W)OG(}se6dl|nq7Pf)Q{P>>KxYRX$ZYipT;%MF_t0;nn=_KwQ9302}!R}o-%8!lZ{SS7lR|!C6iasOWZGqU^VrCyh{+!ug8a|JE)w#@YBHXGv"
        "){hmi-wmBpE&FS8P0{E4Eu;J$)^YyxdEB74ovhcR{KpsksO9>wey?~sIo|h$@~7&b7v~=!TLzMyoF9O9w#9hA#U4LE)Aa_F`LX(6^z{#8`!V=m"
        "VF4`$|CgivF!JACUH#AUJIm1bfa<U9`)M8Bf5e>?T(g~{PE6=tLNeOl_isXK!Cg!z;Xi^$2>RjHaz7}gjt99V{Ab+laIYEv8HasTUpX!<_oq_*"
        "C-{&Pi)bhLpBuK<V5UNSkNf-9+$q+VnFBr>#(|w`NByOe|Ab;T^qpz`|7xMGYZij99eTz7dErqn=aY2$iTf`e6F&a}LOf30llJ$0x{&iMT{_|U"
        "OXzgY`rSS`kbXrxU=`^<;8FViQ6G~%CEm(~JQ(C3z0yZbaY~ND8+J)<cKZF#|3Yy`Bl)KvBo9i3XZh#h<bRHxj^mpuZ=N`B^i~(lPtDHaRn>p!"
        "zbQOPUq#AiKjMD{{LTL17B_TGDe<cj|LIpBVWU)xC-0WehBcIgFU;$f_|?V?-rFsPIPH<ozj9l*Q>XietY1^SGuzorF<Wc&r%4Q;!U4Zf>K|1V"
        "-6dWueg9t-^8SX<Vm0<(tXU9$T(W(T+G=hqvs?}TANcDdzCQnkez?GA-3Sgeug<^F&k57{?=ZjTCe;0SdPC|@6<zs2eSc%aJX)PikYb<998X?U"
        "zb2jJf3P=a`|;BLP0w%Wxzgu+j~AEoLwj}}SHu5wc)vre%3bmwo{Jg(GT2LhZ=g`)`76Yo=if^3vtclu@b)K@cq-HBKSlrjsQ+emkGYHbuR6GR"
        "J|%p{we;W5!e4IOJv2DQ{}9g_p5^`1Fvkr-e%VKPuhZeq$a^MJkM?^A{u7Uob$4a;|B}D>TK;-$UFedz4f+4q=yZ)G`t)=2Z>V3mvs(=p+@b38"
        "ig~A(IiOHy`77^d8naVY*!UB+KY)Mmmj8rDx$uL`1g5ioYyVZ&|17i2GRrKp%reU?zn6Ri;@yKI"
    ),
    "IQ2_XXS": (
        "c-rk)U6O+!49=H<cZL(xhrNgQKh=VwA}bWdcD2nn?G)N3A^*W2ZAoh)OMoRJt%%%fhNW)!MA(~UIlz&w{vWSv;N;RE7b9c8H!=V4eeXBy*Su!H"
        "NYA&Te})dDMt0DI673dV$k3}@(yj*^EQ;_p!QT^rNq4B69lQk|2jzSIUGQy&KT5HMF*2I;kA-j=A5=KdIuLK^f2|fDa>(aR)iMd7Pl&&gA7j7N"
        "Wg2z{U`lZ;pYL4-1mB9O?*skZf75J=bFlkU8p5xResAin`^zkk_jFja>z}Rj34d^5zImK>qW1z|M&ggHx~8gYU27lIsrxIX9jm}@`r#T5cvS%Y"
        "GfX`Hl!mYTgohSWbUWkWRee^GK=6H-=6}xQfytMKQ|f*Ed;x{x(&s7wQ<1(k@1NHjzP0~Nc;14nMtxPgJAD5SKDdgV`SV(QW&C5?k9_KF`@$0x"
        "<X$fj2m}IwKp^;d`~q5Z2cG"
    ),
    "IQ2_XS": (
        "c-rk)L9)Xj2n9y>PEU|5dJm7#>HQD$jn$|`P4#z?%<vXzH4z2mAwKn+o(Ql#9{}K<<eEENzYhI??uC0o4&M)3|LWVQU<hg6caYPPk3gGzHh$~3"
        "?pKGl8Jiw9?beSRFB+K+aXoQfqH?_dzF3q!tntdo{O<Mc+5e;Os~n%%XGZT`zT0)C;a}*;#^`aH)Bh26PLyNW`?c_F4^;hob!__|nVqp_fA_Og"
        "?GK<>dt@Vc`PB1oG^wgum&)nC@Dr1-;~dLAVUxmY%3;}~GzbLu<NuTgyZpbhc=!BCFrD+_c_Z<UIq(C^3q^RwTx}*-kn}RuxW_;@Ch!!8xw-%O"
        "x$c;MKN(P;@N;1YHD-Ux@(wYAM^3lc$-Fq8e&c?lq&Xk1dirxLH}iiUcPi#iI{LQ<Q}}$W0Kn61jfZpCFJq3r*tb2O+H6${1cDp#e^&QtMs}&b"
        "BWguw&Jnu7(QW>DmU8Gkzby4nU?u>wx+d{Fj@1%H{eu?nbODg~-&VObukZT2Yo}`8b(h`QHHA!l{>eWxfgPG)8OoJcgVx78ySg4J{&V|ib^$PZ"
        "4}?EBK`k?GP(g>r8I$k%SJjATHxdGYKp+qZ1OmY|@CTCx68!"
    ),
    "IQ2_S": (
        "c-rk)NwS0>3=OHcr#OKuxQA!({)hR3C=lX+f74X)7FL58$V<r3Zd%bP0RLPOz$pWk;Dnzy;OAGg+d2adOnM#GEAs1X7+cbieg24ZUw@7;wyKan"
        "?fa&4Z2J}8$9>~``Suw>FG}()Xvh`V^i`P2M<!owD`?t(MIdy9z<=Z+_yN@XJH~$wv+=+4W+Go7_`kJpInU*DyN4&W=x>94lYD-@On$U%E?%Ge"
        "F3=+m|M&M=dp)S~|Dd)5nSX!xz5gFPz?5Hwcl^J#?;?oK?EdNARenpr^yfRy<&e^Heds?h&`<oIR!I5R@c6Heye!9OpC5H`PaETpkY6t2Kh^iq"
        "3Gsh!*x#^y^`rddD*kjE|L^j9Q~t$v9-ib&_T~I9|KLB9PjH`KMDV;bcjgRhw77lk|E0cC{nL_&?F;)Jb%s>j)l};y{d0et1(9#-$$SaIz(6nY"
        "--HhO>~q0f=0{+C(BAKV>-+Nfk1g?^g!_x%L$1`fQXwB6>k3Mp4{slS9^StCF25&!=q`TdUoCC^*IHjG6ypEV9QkkR2Nd!PzO`y!m0<Y4j@8vf"
        "vR0D+Q|$lGaby2q*%wPYzVGWlW?ib!D_dI2zP;%?DMl2*z`(%3z`(%3z`#%9541rmBL"
    ),
    "IQ3_XXS": (
        "c-rlkF^+>U5Jd;eNGO$4q(`Y%dkUx6K6@jJD%w+QxyM{%gM(mZOw#h7L{J!v5r6(ST<C{dGGuAwgVvm4^_tFb@n5s4Ut*<=*B~0=)^F-VtUix!"
        "#}jpN3-RiKoqtHbcG@KJ434dRmstz}PTx~hF|gWDQogN>H)X74#*eBS@^SB(@mIAsGUqbZ2+HeN_3FoFRR62^f6M1W-v{#)+vM=Edw3;GQg5lG"
        "<lm01<aC&ocW?B!-`yui#H0?${_7S0-o@uTD=%fV5w)d-_k)lhw{lcc(3NzMXXz>lb6oPe`<vXo=WI#6X3}a+sN}R;^ogsc!|Mw6QwIZWb)56H"
        "Vg2W;3R-dfw<`~F-Sc41=I*YRA++NT0snmN%Ia!Xd*0#N>U?`MS(aU=DX1qu-uq?#l5h0yE3dk1UY)Jr%6fVmMWc4tTOaZr000000000006^j&"
        "695$U"
    ),
    "IQ3_S": (
        "c-rk&!A=4(5S`t0lZDelFkTnL1o?_$^q^jhiSc)UXoB7#et=PoiTtFmLqVX^{s8lmWxG3_X_+@~x<B+pXH?QRHL0Kl9pV($SL#uPagR)3|Dqeb"
        "Z_yI|M2)~+!dlQR{0kame29!@)JEI}<@|Jr4z6oN`NZAgehAC!I$z`O`#ACbggq)q;CBUP9x%E`_CkK|khh%KDeyEB_*-Iz<FCdz^k2X-<rt2k"
        "klz6_+@z}rKmTjz(f=^#-OF%QonvpY^^YAZdZahxXvq4!2<!#a-)Du&`Co93C$P>iY6tdnSUQ;Da&HCyDR+&&kKPaL6<6gL-lf<dUbdA{i#v30"
        "Eqg2X5)A#~8qz!RR0<g!f`O*bd<K<<`ghEBL~hplZK1w0Ts5Bt;rVdsYs-ioz-hmRt>Wq_g&Ee*i|L;@f<lJt-E(Fj6FGcl?RNPbm-E}@%E_Qn"
        "slQg-fqT*Q3!XFfo*|1LJ8z8`q2ve@t-vl@%Eb9`-1={EUR@1XpT~Xuo1O0hBk13;KZ<D6)sL%;bsw*VIc?uVY+{FYtK`)GkkLul6l;bzxs~+e"
        "-c7bzj%B{WZ!PLSW9BJ&`fg4JiKoWS%2~vhlJT2LaRPJh!IpV4BD*<fe-QC+L;LHqBTwkEAMFpl?Uz}W)V4|LKHl5)t52a&C=?2XLZMJ76bi+$"
        ";}886Cm;"
    ),
}

_VALUES: dict[str, tuple[int, ...]] = {
    "IQ1_S": (-1, 0, 1),
    "IQ2_XXS": (8, 25, 43),
    "IQ2_XS": (8, 25, 43),
    "IQ2_S": (8, 25, 43),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
"""What a code's digits stand for."""


@cache
def grid(name: str) -> npt.NDArray[np.int8]:
    """The table of a format: [num_points, 8], or [num_points, 4] for IQ3."""
    bitmap = np.frombuffer(zlib.decompress(base64.b85decode(_POINT_SETS[name])), np.uint8)
    codes = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
    bits = 4 if name.startswith("IQ3") else 2
    digits = codes[:, None] >> np.arange(0, 16, bits) & (1 << bits) - 1
    points: npt.NDArray[np.int8] = np.array(_VALUES[name], np.int8)[digits]
    return points
